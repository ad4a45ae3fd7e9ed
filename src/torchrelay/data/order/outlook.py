"""Which shards a process needs, from a slot on: first and last slot of each use, in order of need. Pure.

A process reads the same places of every global batch. Where the batch and the lanes have a common
divisor, those places fall into some of the lanes only, and only their shards are needed. A shard is
used once in an epoch, twice where the border between two lanes cuts it; it counts as used from the
first to the last slot of its window, because any of the window's samples may come at any time.

Costs O(shards of the epochs looked at) and reads no sample.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchrelay.data.order.order import Ints, Line, Order, cut_windows


@dataclass(frozen=True, slots=True)
class SlotPattern:
    """Slots k·global_batch + [first, first + count) for k = 0, 1, …: what one process reads."""

    global_batch: int
    first: int
    count: int


class Outlook(NamedTuple):
    """Uses of shards, ascending by `first`; all int64 [uses]."""

    shards: Ints
    """Number of the shard in stored order."""
    first: Ints
    """First slot of the window, whoever reads it; may lie before the slot that was asked for."""
    last: Ints
    """Its last slot."""


def outlook(order: Order, slot: int, pattern: SlotPattern | None, horizon: int) -> Outlook:
    """All uses that end at `slot` or later and begin before `slot + horizon`.

    Of a `pattern` none is left out; one may be listed that only others read, where its window is
    shorter than the pattern's step. Without a pattern every slot is read.
    """
    stop = slot + horizon
    epochs = range(slot // order.num_samples, max(slot, stop - 1) // order.num_samples + 1)
    parts = [_look_at(order, epoch, pattern) for epoch in epochs]
    shards, first, last = (np.concatenate(column) for column in zip(*parts, strict=True))
    chosen = np.flatnonzero((last >= slot) & (first < stop))
    chosen = chosen[np.argsort(first[chosen], kind="stable")]
    return Outlook(shards[chosen], first[chosen], last[chosen])


def first_needs(order: Order, slots: Sequence[int] | Ints) -> dict[int, int]:
    """Shard → the first of `slots` (ascending) that reads it, exactly; in order of need."""
    asked = np.asarray(slots, dtype=np.int64)
    shards, places = np.unique(order.trace(asked).located.shards, return_index=True)
    by_need = np.argsort(places)
    return dict(zip(shards[by_need].tolist(), asked[places[by_need]].tolist(), strict=True))


def pattern_slots(pattern: SlotPattern | None, slot: int, count: int) -> Ints:
    """About the next `count` slots of a pattern from `slot` on, ascending; at least one batch's."""
    if pattern is None:
        return np.arange(slot, slot + count, dtype=np.int64)
    batches = np.arange(-(-count // pattern.count) + 1, dtype=np.int64) + slot // pattern.global_batch
    inside = np.arange(pattern.first, pattern.first + pattern.count, dtype=np.int64)
    slots: Ints = (batches[:, None] * pattern.global_batch + inside).ravel()
    return slots[slots >= slot]


def _look_at(order: Order, epoch: int, pattern: SlotPattern | None) -> Outlook:
    line = order.line(epoch)
    if line.lanes == 0:
        return _stored_order(line, pattern)
    return _windows(line, np.flatnonzero(_touched(line, pattern)))


def _stored_order(line: Line, pattern: SlotPattern | None) -> Outlook:
    """Not shuffled: every shard is read from its first sample to its last."""
    first, last = line.first_slot + line.starts[:-1], line.first_slot + line.starts[1:] - 1
    if pattern is not None:
        place = (first - pattern.first) % pattern.global_batch
        begin = np.where(place < pattern.count, first, first + pattern.global_batch - place)
        read = begin <= last
        return Outlook(line.shards[read], first[read], last[read])
    return Outlook(line.shards, first, last)


def _touched(line: Line, pattern: SlotPattern | None) -> NDArray[np.bool_]:
    """Which lanes a pattern ever reads in the epoch: slot g is in lane (g - first slot) mod lanes."""
    lanes = np.arange(line.lanes, dtype=np.int64)
    if pattern is None:
        return np.ones(line.lanes, dtype=np.bool_)
    step = gcd(pattern.global_batch, line.lanes)
    touched: NDArray[np.bool_] = (lanes + line.first_slot - pattern.first) % step < pattern.count
    return touched


def _windows(line: Line, lanes: Ints) -> Outlook:
    """Every (lane, shard) pair of these lanes, with the rows of its window turned into slots."""
    lane_from, lane_to = line.lane_starts[lanes], line.lane_starts[lanes + 1]
    place_from = line.lane_first[lanes]
    counts = line.lane_stop[lanes] - place_from
    lane = np.repeat(np.arange(lanes.size), counts)
    offset = np.arange(lane.size) - np.repeat(np.cumsum(counts) - counts, counts)
    _, first, end = cut_windows(offset, counts[lane], line.window_shards)
    start = np.maximum(line.starts[place_from[lane] + first], lane_from[lane]) - lane_from[lane]
    stop = np.minimum(line.starts[place_from[lane] + end], lane_to[lane]) - lane_from[lane]
    base = line.first_slot + lanes[lane]
    shards = line.shards[place_from[lane] + offset]
    return Outlook(shards, base + start * line.lanes, base + (stop - 1) * line.lanes)
