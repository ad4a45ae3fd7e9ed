"""Segments: stretches of a run in which the same parts are read by the same weights. Pure."""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from torchrelay.data.order.history import Part, Segment, Source, find_part
from torchrelay.data.order.mixture import Mixture, Shares
from torchrelay.data.order.permutation import make_key

_KEY = 2
"""Keeps the keys of mixtures apart from those of `order`, whose second part is an epoch."""


class Stretch:
    """A segment ready to be asked where its slots are. Safe from several threads."""

    def __init__(self, segment: Segment, seed: int) -> None:
        self.segment = segment
        active = [number for number, part in enumerate(segment.parts) if part.weight]
        self._active: NDArray[np.int64] = np.array(active, np.int64)
        self._first: NDArray[np.int64] = np.array([segment.parts[n].first for n in active], np.int64)
        weights = [_exact(segment.parts[number].weight) for number in active]
        self._mixture = Mixture(weights, make_key(seed, segment.start, _KEY, len(weights)))

    @property
    def shift(self) -> int | None:
        """The own slot minus the slot, where one part alone is read, else None."""
        return int(self._first[0]) - self.segment.start if len(self._active) == 1 else None

    def locate(self, slots: NDArray[np.int64]) -> Shares:
        """Number of the part in `segment.parts`, and its own slot, of each slot ≥ start."""
        shares = self._mixture.locate(slots - self.segment.start)
        return Shares(self._active[shares.parts], self._first[shares.parts] + shares.own)

    def own_slots(self, slot: int) -> list[int]:
        """The own slot at which each of `segment.parts` stands before `slot` is read."""
        own = [part.first for part in self.segment.parts]
        counts = self._mixture.counts(slot - self.segment.start)
        for number, count in zip(self._active.tolist(), counts, strict=True):
            own[number] += count
        return own


def first_segment(sources: Sequence[Source], weights: Sequence[float]) -> Segment:
    """The segment of a run that begins."""
    return _continue((), (), sources, weights, 0)


def next_segment(
    past: Sequence[Segment], sources: Sequence[Source], weights: Sequence[float], slot: int, seed: int
) -> Segment:
    """The segment that reads `sources` by `weights` from `slot` on; the last of `past` if it does so already.

    A source goes on where it was left, even if it was not read for a while; one of a new version, and a
    new one, begin at their slot 0.
    """
    last = past[-1]
    own = Stretch(last, seed).own_slots(slot)
    known = [replace(part, first=first, weight=0.0) for part, first in zip(last.parts, own, strict=True)]
    following = _continue(past, known, sources, weights, slot)
    return last if _shares(last) == _shares(following) else following


def chain(sources: Sequence[Source]) -> tuple[Segment, ...]:
    """Segments that read each source once, one after the other."""
    one_by_one = [[float(at == number) for at in range(len(sources))] for number in range(len(sources))]
    start, segments = 0, []
    for source, weights in zip(sources, one_by_one, strict=True):
        parts = first_segment(sources, weights).parts
        segments.append(Segment(start=start, parts=parts))
        start += source.samples
    return tuple(segments)


def _continue(
    past: Sequence[Segment],
    known: Sequence[Part],
    sources: Sequence[Source],
    weights: Sequence[float],
    slot: int,
) -> Segment:
    base = max((part.base + part.samples for segment in past for part in segment.parts), default=0)
    parts = {part.dataset: part for part in known}
    for source, weight in zip(sources, weights, strict=True):
        part = find_part(known, source)
        if part is None or part.version != source.version:
            part = Part(**source._asdict(), base=base, weight=0.0, first=0)
            base += source.samples
        if part.dataset != source.dataset and parts.get(part.dataset) is part:  # it has another name now
            del parts[part.dataset]
        parts[source.dataset] = replace(part, dataset=source.dataset, weight=float(weight))
    return Segment(start=slot, parts=tuple(parts.values()))


def _shares(segment: Segment) -> dict[tuple[str, str], Fraction]:
    """Every part that is known, and its share of the slots."""
    weights = {(part.dataset, part.version): _exact(part.weight) for part in segment.parts}
    total = sum(weights.values())
    return {part: weight / total for part, weight in weights.items()}


def _exact(weight: float) -> Fraction:
    """The number as it was written: 0.1 is one tenth."""
    return Fraction(repr(weight))
