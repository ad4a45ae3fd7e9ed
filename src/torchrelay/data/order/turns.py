"""Which slot every turn of a run has. Pure; random access in O(log gaps).

A turn is one sample's place in a step: step k has the turns (k-1)·G … k·G - 1, G = samples of a step.
Turns follow each other without a hole, whatever is left out of the data, so ranks share a step's
turns without knowing of it. Where epochs end with their last step, that step is filled up with turns
that have no sample.

Turns are counted from where a run was resumed: there, turn and slot are given together. So another
number of samples a step, or another range that is left out, changes only what is still to come.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchrelay.data.order.gaps import Gap, Gaps

Ints = NDArray[np.int64]
NO_SLOT = -1
"""Slot of a turn that has no sample."""


class Start(NamedTuple):
    """A turn and the slot that is next at it."""

    turn: int
    slot: int


class EpochEnds(NamedTuple):
    """Epoch e is the slots first + e·samples …; its turns are filled up to whole steps."""

    first: int
    samples: int
    batch: int
    """Samples of a step."""


class Turns:
    """The turns from `start` on."""

    def __init__(self, start: Start, gaps: tuple[Gap, ...] = (), ends: EpochEnds | None = None) -> None:
        self.start = start
        self._gaps = Gaps(gaps, first=start.slot)
        self._epochs = _Epochs(start, self._gaps, ends) if ends else None

    @property
    def shift(self) -> int | None:
        """The slot minus the turn, where that is the same for all turns, else None."""
        is_even = self._epochs is None and not self._gaps.ranges
        return self.start.slot - self.start.turn if is_even else None

    def slots(self, turns: Ints) -> Ints:
        """The slot of each turn ≥ start.turn, int64 [n]; NO_SLOT where it has none."""
        if self._epochs is None:
            return self._gaps.slots(turns + (self.start.slot - self.start.turn))
        first, kept, places = self._epochs.places(turns)
        return np.where(places < kept, self._gaps.slots(first + np.minimum(places, kept - 1)), NO_SLOT)

    def count(self, turn: int) -> int:
        """Samples of the turns from the start up to, not including, `turn`."""
        if self._epochs is None or turn == self.start.turn:
            return turn - self.start.turn
        first, kept, places = self._epochs.places(np.array([turn - 1], np.int64))
        return int(first[0] + min(places[0] + 1, kept[0])) - self.start.slot

    def slot_after(self, turn: int) -> int:
        """The slot behind the last one of the turns below `turn`."""
        count = self.count(turn)
        return self._gaps.slot(self.start.slot + count - 1) + 1 if count else self.start.slot


class _Epochs:
    """Turns of epochs that end with their last step: runs of epochs that have equally many turns."""

    def __init__(self, start: Start, gaps: Gaps, ends: EpochEnds) -> None:
        self._start = start
        self._gaps = gaps
        self._ends = ends
        # Epochs differ in length only where the first begins and where a gap begins or ends.
        borders = [start.slot, *(border for gap in gaps.ranges for border in gap)]
        odd = {(border - ends.first) // ends.samples for border in borders}
        epochs = np.array(sorted(odd | {epoch + 1 for epoch in odd}), np.int64)
        first, stop = self._ranks(epochs)
        lengths = -(-(stop - first) // ends.batch) * ends.batch
        counts = np.diff(epochs, append=epochs[-1])
        turns = start.turn + np.cumsum(lengths * counts) - lengths * counts
        used = lengths > 0  # the last run has no end and is never empty
        self._turns, self._first, self._lengths = turns[used], epochs[used], lengths[used]

    def places(self, turns: Ints) -> tuple[Ints, Ints, Ints]:
        """Rank of the first slot of each turn's epoch, kept slots of the epoch, place of the turn in it."""
        run = np.searchsorted(self._turns, turns, side="right") - 1
        epochs, places = np.divmod(turns - self._turns[run], self._lengths[run])
        first, stop = self._ranks(self._first[run] + epochs)
        return first, stop - first, places

    def _ranks(self, epochs: Ints) -> tuple[Ints, Ints]:
        """Ranks of the first slot of each epoch, from the start on, and of the slot after its last."""
        first = np.maximum(self._ends.first + epochs * self._ends.samples, self._start.slot)
        return self._gaps.ranks(first), self._gaps.ranks(self._ends.first + (epochs + 1) * self._ends.samples)
