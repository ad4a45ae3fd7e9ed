"""Where a run is in its data: one small record, the same on every rank. Pure.

It is made from the committed step. What a loader has read ahead is not in it.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchrelay.core.errors import DataError
from torchrelay.data.manifest import SHOWN_DIGITS
from torchrelay.data.order.history import Segment, Source, find_part


@dataclass(frozen=True, slots=True, kw_only=True)
class DataPosition:
    """All that is needed to go on with exactly the next sample."""

    dataset_version: str
    """Version of the dataset; of a mixture, a hash over the versions of its parts."""
    seed: int
    order_version: int
    """`order.ORDER_VERSION` of the code that trained."""
    global_slot: int
    """The slots below it are behind the run: read, or left out on purpose."""
    segments: tuple[Segment, ...]
    """What was read up to there, oldest first; the last is the one that is being read."""

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> "DataPosition":
        """What `dataclasses.asdict` gave; ValueError, TypeError or KeyError when it did not."""
        segments = tuple(Segment.from_json(segment) for segment in tree["segments"])
        if not segments:
            raise ValueError("the position has no segment")
        return cls(**{**tree, "segments": segments})


def combine_versions(versions: Sequence[str]) -> str:
    """One version for all sources of a run: that of the only one, else a hash over all."""
    if len(versions) == 1:
        return versions[0]
    return hashlib.sha256("\n".join(versions).encode()).hexdigest()


def check_order(saved: DataPosition, *, seed: int, order_version: int) -> None:
    """DataError, with both sides, unless slots mean the same samples now as when `saved` was made."""
    if saved.seed != seed:
        raise DataError(
            f"the run has read its data in the order of run.seed {saved.seed}; now the seed is {seed}",
            hint=f"set run.seed back to {saved.seed}, or start a new run",
        )
    if saved.order_version != order_version:
        raise DataError(
            f"the run was made with order version {saved.order_version}; "
            f"this torchrelay has order version {order_version}",
            hint="resume with the torchrelay that started the run, or start a new run",
        )


def check_sources(
    saved: DataPosition, sources: Sequence[Source], *, migrate_from: str | None, may_add: bool
) -> None:
    """DataError unless a run at `saved` may go on with `sources`.

    Another version of a source needs its old version in `migrate_from`; a source that is new to the run
    needs `may_add` (a mixture says it in so many words), or takes the place of the old version.
    """
    known = saved.segments[-1].parts
    before = [part.version for part in known if part.weight]
    for source in sources:
        part = find_part(known, source)
        olds = before if part is None else [part.version]
        is_same = part is not None and part.version == source.version
        is_migrated = migrate_from is not None and any(old.startswith(migrate_from) for old in olds)
        if not is_same and not is_migrated and not (part is None and may_add):
            raise _another_version(saved, source, olds[0])


def _another_version(saved: DataPosition, source: Source, old: str) -> DataError:
    return DataError(
        f"the run has read version {old[:SHOWN_DIGITS]} of its data up to slot {saved.global_slot:,}; "
        f"now {source.dataset} is version {source.version[:SHOWN_DIGITS]}",
        hint=f"pin the old one with NAME@{old[:SHOWN_DIGITS]}; or go on with the new one, from its start, "
        f"with data.migrate_from: {old[:SHOWN_DIGITS]}; or start anew with --fresh",
    )
