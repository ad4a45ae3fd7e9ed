"""Which staged items make up which shard. Pure; sees only sizes, so it costs next to nothing.

The stream of a split is cut after the last document that fits into a shard. A document that is
larger than a shard alone is cut (tokens), or makes a shard of its own (samples).
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Span(NamedTuple):
    """Items [start, stop) of one split of a staged unit."""

    unit: int
    start: int
    stop: int


class Position(NamedTuple):
    """Where the next shard of a split begins."""

    shards: int = 0
    """Shards before it."""
    unit: int = 0
    """First unit of which it may need something."""
    offset: int = 0
    """Items of that unit that are in earlier shards."""
    carried: int = 0
    """Items in earlier shards of the document that the shard begins with; 0 where it begins anew."""


class ShardPlan(NamedTuple):
    """One shard to be put together."""

    split: str
    spans: tuple[Span, ...]
    first: Position
    """Where it begins; `first.shards` is its number."""
    after: Position
    """Where the next one begins."""


class ShardPlanner:
    """Cuts the stream of one split, unit after unit."""

    def __init__(self, split: str, capacity: int, start: Position, *, cuts: bool) -> None:
        """`capacity`: most items of a shard; `cuts`: whether a document may be cut."""
        self._split = split
        self._capacity = capacity
        self._cuts = cuts
        self._position = start
        # Places count items from the beginning of the first unit that is given.
        self._units: list[Span] = []
        self._start = start.offset
        self._end = 0
        self._border = start.offset - start.carried
        """The end of the last document that ends at or before `_start`."""
        self._borders: NDArray[np.int64] = np.empty(0, np.int64)
        """Ends of documents after `_start`."""

    @property
    def position(self) -> Position:
        """Where the next shard begins; units before that are not needed any more."""
        return self._position

    def add(self, unit: int, sizes: NDArray[np.int64], is_last: NDArray[np.bool_]) -> Iterator[ShardPlan]:
        """The shards that are full once the rows of `unit` have come; units come in order."""
        ends = self._end + np.cumsum(sizes)
        start, self._end = self._end, int(ends[-1])
        self._units.append(Span(unit, start, self._end))
        borders = ends[is_last]
        self._borders = np.concatenate((self._borders, borders[borders > self._start]))
        while self._end - self._start > self._capacity:
            stop = self._choose_stop()
            if stop is None:
                return
            yield self._cut(stop)

    def close(self) -> Iterator[ShardPlan]:
        """The shard that is left, if any."""
        if self._end > self._start:
            yield self._cut(self._end)

    def _choose_stop(self) -> int | None:
        fit = int(np.searchsorted(self._borders, self._start + self._capacity, "right"))
        if fit:
            return int(self._borders[fit - 1])
        if self._cuts:
            return self._start + self._capacity
        return int(self._borders[0]) if self._borders.size else None

    def _cut(self, stop: int) -> ShardPlan:
        first = self._position
        spans = tuple(
            Span(unit, max(start, self._start) - start, min(end, stop) - start)
            for unit, start, end in self._units
            if start < stop and end > self._start
        )
        passed = int(np.searchsorted(self._borders, stop, "right"))
        if passed:
            self._border = int(self._borders[passed - 1])
        self._borders = self._borders[passed:]
        last = self._units[-1].unit
        self._units = [span for span in self._units if span.stop > stop]
        self._start = stop
        unit, offset = (self._units[0].unit, stop - self._units[0].start) if self._units else (last + 1, 0)
        self._position = Position(first.shards + 1, unit, max(0, offset), stop - self._border)
        return ShardPlan(self._split, spans, first, self._position)
