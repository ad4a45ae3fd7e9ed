"""The order in which samples are read: a pure function of a slot number, with random access.

    slot g → epoch e = g // N, place i = g % N → lane i % C, row i // C → window → sample

An epoch lays its shards in a line of N samples, in an order of its own, and cuts the line in C
lanes of near-equal length. A lane is read front to back in windows of a few consecutive shards;
inside a window the samples are permuted. So few shards are needed at a time, and who reads which
slot never matters. Slots go on without end: epoch follows epoch, nothing is dropped or repeated.

Only arrays with one number a shard are kept, for two epochs. Slot 10**10 costs what slot 10 costs.
A dataset with too few shards to give every lane a window gets fewer lanes, the largest divisor of
`lanes` that leaves `window_shards` shards a lane, with windows as much larger: at any time
lanes × window_shards shards are in use, and a dataset of no more than that is one window.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchrelay.core.errors import DataError
from torchrelay.data.order.permutation import make_key, mix, permute

ORDER_VERSION = 2
"""Goes into a run's position; changes whenever the same slot would give another sample."""

BLOCK_SLOTS = 1024
"""Slots computed ahead at once, because numpy costs per call more than per slot."""

Ints = NDArray[np.int64]


class Located(NamedTuple):
    """Where the samples of some slots are; all int64 [slots]."""

    sample_ids: Ints
    """Dataset-wide number: samples of the shards before in stored order, plus `indexes`."""
    shards: Ints
    """Number of the shard in stored order."""
    indexes: Ints
    """Number of the sample in its shard."""


class Trace(NamedTuple):
    """How slots became samples; all int64 [slots]."""

    epochs: Ints
    lanes: Ints
    windows: Ints
    """Number of the window in its lane."""
    located: Located


class _Layout(NamedTuple):
    """One epoch's line of shards."""

    epoch: int
    shards: Ints
    """Shard numbers as they follow each other, [shards]; shards without samples are left out."""
    starts: Ints
    """First position of each on the line, and its end, [shards + 1]."""
    lane_first: Ints
    """Place in `shards` of each lane's first shard, [lanes]."""
    lane_stop: Ints
    """Place after each lane's last shard, [lanes]."""
    key: np.uint64


class Line(NamedTuple):
    """How one epoch lays out its shards; for those who plan ahead. Read-only."""

    first_slot: int
    """Slot at which the epoch begins."""
    shards: Ints
    """Shard numbers as they follow each other, [shards]; shards without samples are left out."""
    starts: Ints
    """First position of each on the line, and its end, [shards + 1]."""
    lanes: int
    """0 where the samples are read in stored order; then there are no windows either."""
    lane_starts: Ints
    """First position of each lane, and the end, [lanes + 1]."""
    lane_first: Ints
    """Place in `shards` of each lane's first shard, [lanes]."""
    lane_stop: Ints
    """Place after each lane's last shard, [lanes]."""
    window_shards: int


class _Block(NamedTuple):
    start: int
    stop: int
    located: Located


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderSettings:
    """What decides an order besides the dataset."""

    seed: int
    lanes: int
    """At most so many spans are read side by side."""
    window_shards: int
    """Shards of a lane that are shuffled together."""
    shuffle: bool
    """False reads the samples in stored order."""


class Order:
    """The endless order of one split. Safe from several threads: what it remembers is replaced whole."""

    def __init__(self, sample_counts: Sequence[int] | Ints, settings: OrderSettings) -> None:
        counts = np.asarray(sample_counts, dtype=np.int64)
        self._bases: Ints = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        self.num_samples = int(self._bases[-1])
        """Samples of one epoch, N."""
        if self.num_samples == 0:
            raise DataError("there is no sample to order")
        self._counts = counts
        self.num_shards = len(counts)
        """Shards, those without samples too."""
        self._filled = np.flatnonzero(counts)
        self._settings = settings
        self.lanes = choose_lanes(settings.lanes, settings.window_shards, len(self._filled))
        """Lanes in use, C."""
        self.window_shards = settings.window_shards * settings.lanes // self.lanes
        """Shards of a lane that are shuffled together, about."""
        self._lane_starts = _cut_lanes(self.num_samples, self.lanes)
        self._layouts: tuple[_Layout, ...] = ()
        self._block = _Block(0, 0, Located(self._filled[:0], self._filled[:0], self._filled[:0]))

    def samples(self, slots: Ints) -> Located:
        """Where the samples of `slots` are; any slots ≥ 0 in any order, int64 [n]."""
        if slots.size == 0:
            return Located(slots, slots, slots)
        low, high = int(slots.min()), int(slots.max())
        block = self._block
        if low < block.start or high >= block.stop:
            if high - low >= BLOCK_SLOTS // 4:  # far apart: a block would be mostly waste
                return self.trace(slots).located
            block = self._block = self._compute_block(low, high)
        sample_ids, shards, indexes = block.located
        offsets = slots - block.start
        return Located(sample_ids[offsets], shards[offsets], indexes[offsets])

    def trace(self, slots: Ints) -> Trace:
        """As `samples`, and the way there; computed for exactly these slots."""
        if slots.size and int(slots.min()) < 0:
            raise ValueError(f"slot {int(slots.min())} is negative")
        epochs, places = np.divmod(slots, self.num_samples)
        if not self._settings.shuffle:
            nought = np.zeros_like(slots)
            return Trace(epochs, nought, nought, _find(self._bases, places))
        parts = np.zeros((5, slots.size), dtype=np.int64)
        for epoch in sorted(set(epochs.tolist())):
            chosen = epochs == epoch
            parts[:, chosen] = self._follow(self._layout(epoch), places[chosen])
        lanes, windows, sample_ids, shards, indexes = parts
        return Trace(epochs, lanes, windows, Located(sample_ids, shards, indexes))

    def line(self, epoch: int) -> Line:
        """The layout of an epoch, O(shards); what `samples` remembers stays as it is."""
        first_slot, window = epoch * self.num_samples, self.window_shards
        if not self._settings.shuffle:
            starts = np.append(self._bases[self._filled], self.num_samples)
            return Line(first_slot, self._filled, starts, 0, starts[:0], starts[:0], starts[:0], window)
        layout = next((known for known in self._layouts if known.epoch == epoch), None)
        layout = layout or self._lay_out(epoch)
        return Line(
            first_slot,
            layout.shards,
            layout.starts,
            self.lanes,
            self._lane_starts,
            layout.lane_first,
            layout.lane_stop,
            window,
        )

    def _follow(self, layout: _Layout, places: Ints) -> tuple[Ints, Ints, Ints, Ints, Ints]:
        """Lane, window, sample id, shard and index of some places of an epoch."""
        rows, lanes = np.divmod(places, self.lanes)
        lane_from, lane_to = self._lane_starts[lanes], self._lane_starts[lanes + 1]
        positions = lane_from + rows
        shards = np.searchsorted(layout.starts, positions, side="right") - 1
        lane_first = layout.lane_first[lanes]
        windows, first, last = cut_windows(
            shards - lane_first, layout.lane_stop[lanes] - lane_first, self.window_shards
        )
        start = np.maximum(lane_from, layout.starts[lane_first + first])
        stop = np.minimum(lane_to, layout.starts[lane_first + last])
        keys = mix(start.astype(np.uint64) ^ layout.key)
        inside = permute((positions - start).astype(np.uint64), (stop - start).astype(np.uint64), keys)
        found = _find(layout.starts, start + inside.astype(np.int64))
        shards = layout.shards[found.shards]
        return lanes, windows, self._bases[shards] + found.indexes, shards, found.indexes

    def _compute_block(self, low: int, high: int) -> _Block:
        """The block from `low` on; it ends with the epoch of `high`, so no epoch is opened early."""
        epoch_end = (high // self.num_samples + 1) * self.num_samples
        stop = max(high + 1, min(low + BLOCK_SLOTS, epoch_end))
        return _Block(low, stop, self.trace(np.arange(low, stop, dtype=np.int64)).located)

    def _layout(self, epoch: int) -> _Layout:
        for layout in self._layouts:
            if layout.epoch == epoch:
                return layout
        layout = self._lay_out(epoch)
        self._layouts = (*self._layouts[-1:], layout)
        return layout

    def _lay_out(self, epoch: int) -> _Layout:
        """O(shards): the epoch's own order of the shards, as a line."""
        shard_key = np.uint64(make_key(self._settings.seed, epoch, 0))
        rank = mix(self._filled.astype(np.uint64) ^ shard_key)
        shards = self._filled[np.argsort(rank, kind="stable")]
        starts = np.concatenate([[0], np.cumsum(self._counts[shards])]).astype(np.int64)
        lane_first = np.searchsorted(starts, self._lane_starts[:-1], side="right") - 1
        lane_stop = np.searchsorted(starts, self._lane_starts[1:] - 1, side="right")
        window_key = np.uint64(make_key(self._settings.seed, epoch, 1))
        return _Layout(epoch, shards, starts, lane_first, lane_stop, window_key)


def choose_lanes(lanes: int, window_shards: int, num_shards: int) -> int:
    """The largest divisor of `lanes` that leaves each lane about `window_shards` shards; at least 1."""
    most = max(1, num_shards // window_shards)
    return next(count for count in range(min(lanes, most), 0, -1) if lanes % count == 0)


def cut_windows(offsets: Ints, counts: Ints, window_shards: int) -> tuple[Ints, Ints, Ints]:
    """The window of the shard at `offsets` in a lane of `counts` shards: number, first offset, end.

    A lane has as many windows as come nearest to `window_shards` shards each, all of one size but for
    one shard. (Windows of just that size would leave a rest at the end that mixes badly.)
    """
    windows = np.maximum(1, (2 * counts + window_shards) // (2 * window_shards))
    numbers = offsets * windows // counts
    return numbers, -(-numbers * counts // windows), -(-(numbers + 1) * counts // windows)


def _cut_lanes(num_samples: int, lanes: int) -> Ints:
    """Where the lanes begin, and the end, [lanes + 1]: lane l has ceil((num_samples - l) / lanes) rows."""
    numbers = np.arange(lanes + 1, dtype=np.int64)
    return numbers * (num_samples // lanes) + np.minimum(numbers, num_samples % lanes)


def _find(starts: Ints, positions: Ints) -> Located:
    """The span of `starts` that holds each position (empty spans never do), and the place in it."""
    spans = np.searchsorted(starts, positions, side="right") - 1
    return Located(positions, spans, positions - starts[spans])
