"""What a run has read, as plain records: which parts, by which weights, from which slot on. Pure.

A run's segments are kept with its position. The recipe decides only what follows the slot at which a
run is resumed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple


class Source(NamedTuple):
    """A split of one version of a dataset, or of a Python source."""

    dataset: str
    """Its name; no two sources of a run have the same."""
    version: str
    samples: int
    """Samples of its epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A source in one segment."""

    dataset: str
    version: str
    samples: int
    base: int
    """What is added to its sample ids, so that no two parts of a run have one in common."""
    weight: float
    """Share of the slots, in proportion to the other weights; 0: not read."""
    first: int
    """Its own slot at the segment's start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """The slots from `start` up to the next segment's."""

    start: int
    parts: tuple[Part, ...]
    """All that the run has read so far or may read now."""

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> "Segment":
        """What `dataclasses.asdict` gave; ValueError, TypeError or KeyError when it did not."""
        return cls(start=int(tree["start"]), parts=tuple(Part(**part) for part in tree["parts"]))


def find_part(parts: Sequence[Part], source: Source) -> Part | None:
    """What the run knows of a source: the same version, if need be under another name, or an old one."""
    fits = {
        part: (part.version == source.version, part.dataset == source.dataset)
        for part in parts
        if part.version == source.version or part.dataset == source.dataset
    }
    return max(fits, key=lambda part: fits[part], default=None)
