"""The whole order of a run: turn → slot → part and own slot. Pure; constant memory.

Plan       what the recipe wants, from the first slot on
Course     what a run does: history up to where it was resumed, and the plan from there on
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchrelay.data.order.gaps import Gap
from torchrelay.data.order.history import Segment, Source
from torchrelay.data.order.mixture import Shares
from torchrelay.data.order.order import ORDER_VERSION
from torchrelay.data.order.position import DataPosition, check_order, check_sources, combine_versions
from torchrelay.data.order.segment import Stretch, chain, first_segment, next_segment
from torchrelay.data.order.turns import EpochEnds, Start, Turns

Ints = NDArray[np.int64]


class Change(NamedTuple):
    """From this step on other weights count."""

    step: int
    """Steps that are done before; 0 is the start of the run."""
    weights: tuple[float, ...]
    """Of each source of the plan; 0 leaves it out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The order that the recipe wants."""

    seed: int
    batch: int
    """Samples of a step."""
    sources: tuple[Source, ...]
    changes: tuple[Change, ...]
    """Ascending; the first is at step 0."""
    skip: tuple[Gap, ...] = ()
    fills_epochs: bool = False
    """Whether each epoch ends with its last step (one source only)."""
    migrate_from: str | None = None
    """Old version of a source that may be another one now: its first digits."""
    may_add: bool = False
    """Whether a resumed run may read sources that it did not have before."""

    @property
    def version(self) -> str:
        """See `DataPosition.dataset_version`."""
        return combine_versions([source.version for source in self.sources])

    def check(self, saved: DataPosition) -> None:
        """DataError unless a run at `saved` may go on by this plan."""
        check_order(saved, seed=self.seed, order_version=ORDER_VERSION)
        check_sources(saved, self.sources, migrate_from=self.migrate_from, may_add=self.may_add)


class Course:
    """Where the samples of all turns come from, from where a run was started or resumed on.

    Safe from several threads.
    """

    def __init__(self, plan: Plan, turns: Turns, segments: tuple[Segment, ...]) -> None:
        self.plan = plan
        self.turns = turns
        self.segments = segments
        """Ascending by start: history, the present one, and those that the plan foresees."""
        now = max(0, _count_begun(segments, turns.start.slot) - 1)
        self._stretches = [Stretch(segment, plan.seed) for segment in segments[now:]]
        self._starts = np.array([segment.start for segment in segments[now:]], np.int64)
        names = [source.dataset for source in plan.sources]
        self._numbers = [_number_sources(segment, names) for segment in segments[now:]]

    @property
    def shift(self) -> int | None:
        """The own slot minus the turn, where one source alone is read and nothing left out, else None."""
        turns, own = self.turns.shift, self._stretches[0].shift
        return turns + own if turns is not None and own is not None and len(self._stretches) == 1 else None

    def locate(self, slots: Ints) -> Shares:
        """Number of the source in the plan, and its own slot, of each slot that is still to come."""
        at = np.searchsorted(self._starts, slots, side="right") - 1
        found = np.empty((2, slots.size), np.int64)
        for number in set(at.tolist()):
            chosen = at == number
            shares = self._stretches[number].locate(slots[chosen])
            found[0, chosen], found[1, chosen] = self._numbers[number][shares.parts], shares.own
        return Shares(found[0], found[1])

    def bases(self) -> list[int]:
        """What is added to the sample ids of each source of the plan."""
        bases = {part.dataset: part.base for segment in self.segments for part in segment.parts}
        return [bases[source.dataset] for source in self.plan.sources]

    def own_slots(self, slot: int) -> list[int]:
        """The own slot at which each source of the plan stands before `slot` is read."""
        number = max(0, int(np.searchsorted(self._starts, slot, side="right")) - 1)
        own = [0] * len(self.plan.sources)
        for at, first in zip(
            self._numbers[number].tolist(), self._stretches[number].own_slots(slot), strict=True
        ):
            if at >= 0:
                own[at] = first
        return own

    def samples_in(self, step: int) -> int:
        """Samples of update number `step` (from 1): its turns that have one."""
        batch = self.plan.batch
        if not self.plan.fills_epochs:
            return batch
        return self.turns.count(step * batch) - self.turns.count((step - 1) * batch)

    def position(self, turn: int) -> DataPosition:
        """The record of a run that has committed the turns below `turn`."""
        slot = self.turns.slot_after(turn)
        return DataPosition(
            dataset_version=self.plan.version,
            seed=self.plan.seed,
            order_version=ORDER_VERSION,
            global_slot=slot,
            # One that begins right here is not history yet: the recipe may still change it.
            segments=self.segments[: max(1, _count_begun(self.segments, slot - 1))],
        )


def begin(plan: Plan) -> Course:
    """The course of a run that starts."""
    segments = (first_segment(plan.sources, plan.changes[0].weights),)
    return _go_on(plan, Start(0, 0), segments)


def resume(plan: Plan, saved: DataPosition, *, step: int) -> Course:
    """The course of a run whose first `step` steps are done; DataError when the plan does not fit to it."""
    plan.check(saved)
    return _go_on(plan, Start(step * plan.batch, saved.global_slot), saved.segments)


def read_once(plan: Plan) -> Course:
    """The course that reads all sources once, in stored order, one after the other."""
    return Course(plan, Turns(Start(0, 0)), chain(plan.sources))


def _go_on(plan: Plan, start: Start, past: tuple[Segment, ...]) -> Course:
    now = [change for change in plan.changes if change.step * plan.batch <= start.turn][-1]
    segments = _append(past, plan, now.weights, start.slot)
    turns = Turns(start, plan.skip, _epoch_ends(plan, segments[-1]))
    for change in plan.changes:
        if change.step * plan.batch > start.turn:
            slot = turns.slot_after(change.step * plan.batch)
            segments = _append(segments, plan, change.weights, slot)
    return Course(plan, turns, segments)


def _append(
    past: tuple[Segment, ...], plan: Plan, weights: Sequence[float], slot: int
) -> tuple[Segment, ...]:
    following = next_segment(past, plan.sources, weights, slot, plan.seed)
    if following is past[-1]:
        return past
    return (*(segment for segment in past if segment.start < slot), following)


def _epoch_ends(plan: Plan, segment: Segment) -> EpochEnds | None:
    if not plan.fills_epochs:
        return None
    part = next(part for part in segment.parts if part.weight)
    return EpochEnds(segment.start - part.first, part.samples, plan.batch)


def _count_begun(segments: Sequence[Segment], slot: int) -> int:
    return bisect_right([segment.start for segment in segments], slot)


def _number_sources(segment: Segment, names: list[str]) -> Ints:
    """The plan's number of each part of the segment; -1 for what is not read any more."""
    return np.array([names.index(p.dataset) if p.dataset in names else -1 for p in segment.parts], np.int64)
