"""Turns of a run → where their samples are: a course and the orders of its sources together. Pure."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchrelay.data.order.course import Course
from torchrelay.data.order.order import BLOCK_SLOTS, Located, Order

Ints = NDArray[np.int64]


class Stops(NamedTuple):
    """Samples of some turns."""

    located: Located
    """`sample_ids` are unique over all sources of the run, `shards` numbers in the sources' shards joined;
    all three are -1 where a turn has no sample."""
    epochs: Ints
    """How often the sample's source was read before, int64 [turns]; 0 where there is no sample."""


class _Block(NamedTuple):
    start: int
    stop: int
    values: Ints
    """Rows: sample ids, shards, indexes, epochs."""


class Itinerary:
    """Random access to the samples of a course. Safe from several threads: its memory is replaced whole."""

    def __init__(self, course: Course, orders: Sequence[Order]) -> None:
        """`orders` are of the sources of the course's plan."""
        self.course = course
        self._orders = orders
        self._shard_bases = np.cumsum([0, *(order.num_shards for order in orders)]).tolist()
        self._bases = course.bases()
        is_plain = len(orders) == 1 and course.shift == 0 and self._bases == [0]
        self._only = orders[0] if is_plain else None
        # Not many epochs at once, where they are short: each needs a layout of its own.
        self._ahead = min(BLOCK_SLOTS, max(64, sum(order.num_samples for order in orders)))
        self._block = _Block(0, 0, np.empty((4, 0), np.int64))

    def locate(self, turns: Ints) -> Stops:
        """The samples of `turns`, int64 [n], n ≥ 1, any that are still to come, in any order."""
        if self._only is not None:
            return Stops(self._only.samples(turns), turns // self._only.num_samples)
        low, high = int(turns.min()), int(turns.max())
        block = self._block
        if low < block.start or high >= block.stop:
            if high - low >= BLOCK_SLOTS // 4:  # far apart: a block would be mostly waste
                return _split(self._compute(turns))
            stop = max(high + 1, low + self._ahead)
            block = self._block = _Block(low, stop, self._compute(np.arange(low, stop, dtype=np.int64)))
        return _split(block.values[:, turns - block.start])

    def _compute(self, turns: Ints) -> Ints:
        slots = self.course.turns.slots(turns)
        values = np.full((4, turns.size), -1, np.int64)
        values[3] = 0
        real = np.flatnonzero(slots >= 0)
        shares = self.course.locate(slots[real])
        for number in set(shares.parts.tolist()):
            chosen = shares.parts == number
            order, own, at = self._orders[number], shares.own[chosen], real[chosen]
            ids, shards, indexes = order.samples(own)
            values[0, at] = ids + self._bases[number]
            values[1, at] = shards + self._shard_bases[number]
            values[2, at] = indexes
            values[3, at] = own // order.num_samples
        return values


def _split(values: Ints) -> Stops:
    ids, shards, indexes, epochs = values
    return Stops(Located(ids, shards, indexes), epochs)
