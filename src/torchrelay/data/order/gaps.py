"""Slots that a run leaves out, and how many are kept before each. Pure; O(ranges) memory."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


class Gap(NamedTuple):
    """The slots start … stop-1 are left out."""

    start: int
    stop: int


class Gaps:
    """Slots with holes. The kept slots are numbered on without holes; that number is a slot's rank."""

    def __init__(self, gaps: Iterable[Gap], *, first: int = 0) -> None:
        """Only what of the gaps lies at or above slot `first` counts."""
        self.ranges = _merge(Gap(max(gap.start, first), gap.stop) for gap in gaps if gap.stop > first)
        """Ascending, apart from each other, none empty."""
        lengths = [gap.stop - gap.start for gap in self.ranges]
        self._starts = np.array([gap.start for gap in self.ranges], np.int64)
        self._lengths = np.array(lengths, np.int64)
        self._before = np.cumsum([0, *lengths], dtype=np.int64)
        self._ranks = self._starts - self._before[:-1]

    def ranks(self, slots: Ints) -> Ints:
        """How many kept slots there are below each slot, int64 [n]."""
        if not self.ranges:
            return slots
        last = np.searchsorted(self._starts, slots, side="right") - 1
        inside = np.minimum(slots - self._starts[last], self._lengths[last])
        skipped: Ints = np.where(last < 0, 0, self._before[last] + inside)
        return slots - skipped

    def slots(self, ranks: Ints) -> Ints:
        """The kept slot of each rank, int64 [n]."""
        if not self.ranges:
            return ranks
        return ranks + self._before[np.searchsorted(self._ranks, ranks, side="right")]

    def rank(self, slot: int) -> int:
        """See `ranks`."""
        return int(self.ranks(np.array([slot], np.int64))[0])

    def slot(self, rank: int) -> int:
        """See `slots`."""
        return int(self.slots(np.array([rank], np.int64))[0])


def list_ranges(slots: Iterable[int]) -> list[str]:
    """The slots as ranges, in the way the recipe writes them: 3, 4, 7 → "3..5", "7..8"."""
    return [f"{gap.start}..{gap.stop}" for gap in _merge(Gap(slot, slot + 1) for slot in slots)]


def _merge(gaps: Iterable[Gap]) -> tuple[Gap, ...]:
    merged: list[Gap] = []
    for gap in sorted(gaps):
        if merged and gap.start <= merged[-1].stop:
            merged[-1] = Gap(merged[-1].start, max(merged[-1].stop, gap.stop))
        elif gap.start < gap.stop:
            merged.append(gap)
    return tuple(merged)
