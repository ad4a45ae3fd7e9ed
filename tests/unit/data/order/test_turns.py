"""Against an oracle that counts one by one."""

from collections.abc import Iterator
from itertools import islice

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from torchrelay.data.order.gaps import Gap
from torchrelay.data.order.turns import NO_SLOT, EpochEnds, Start, Turns

gaps = st.lists(
    st.builds(lambda a, n: Gap(a, a + n), st.integers(0, 90), st.integers(1, 70)), max_size=4
).map(tuple)
starts = st.builds(Start, st.integers(0, 50), st.integers(0, 60))
ends = st.builds(EpochEnds, st.integers(-20, 0), st.integers(1, 30), st.integers(1, 9))


def one_by_one(start: Start, gaps: tuple[Gap, ...], ends: EpochEnds | None) -> Iterator[int]:
    """The slot of every turn from the start on."""
    slot, filled = start.slot, 0
    while True:
        if not any(gap.start <= slot < gap.stop for gap in gaps):
            yield slot
            filled += 1
        slot += 1
        if ends and (slot - ends.first) % ends.samples == 0:
            yield from [NO_SLOT] * (-filled % ends.batch)
            filled = 0


def take(start: Start, gaps: tuple[Gap, ...], ends: EpochEnds | None, count: int) -> list[int]:
    return list(islice(one_by_one(start, gaps, ends), count))


@given(start=starts, gaps=gaps, ends=ends | st.none())
@settings(deadline=None, max_examples=300)
def test_every_turn_has_the_slot_that_comes_next(
    start: Start, gaps: tuple[Gap, ...], ends: EpochEnds | None
) -> None:
    expected = take(start, gaps, ends, 150)
    turns = Turns(start, gaps, ends)
    assert turns.slots(start.turn + np.arange(150)).tolist() == expected
    scattered = np.array([149, 3, 77, 3])
    assert turns.slots(start.turn + scattered).tolist() == [expected[i] for i in scattered]


@given(start=starts, gaps=gaps, ends=ends | st.none(), done=st.integers(0, 100))
@settings(deadline=None, max_examples=200)
def test_what_is_done_is_counted_without_the_turns_that_have_no_sample(
    start: Start, gaps: tuple[Gap, ...], ends: EpochEnds | None, done: int
) -> None:
    read = [slot for slot in take(start, gaps, ends, done) if slot != NO_SLOT]
    turns = Turns(start, gaps, ends)
    assert turns.count(start.turn + done) == len(read)
    assert turns.slot_after(start.turn + done) == (read[-1] + 1 if read else start.slot)


@given(start=starts, gaps=gaps, ends=ends | st.none(), steps=st.integers(0, 20), data=st.data())
@settings(deadline=None, max_examples=200)
def test_going_on_from_any_step_goes_on_as_if_never_stopped(
    start: Start, gaps: tuple[Gap, ...], ends: EpochEnds | None, steps: int, data: st.DataObject
) -> None:
    """Whatever lies wholly behind the start of the second part may be added to what is left out."""
    batch = ends.batch if ends else 4
    turns = Turns(start, gaps, ends)
    turn = start.turn + steps * batch
    slot = turns.slot_after(turn)
    added = (Gap(0, data.draw(st.integers(0, slot))),)
    resumed = Turns(Start(turn, slot), gaps + added, ends)
    asked = turn + np.arange(120)
    assert resumed.slots(asked).tolist() == turns.slots(asked).tolist()


def test_a_range_over_the_place_that_is_reached_leaves_out_what_is_still_to_come() -> None:
    resumed = Turns(Start(40, 40), (Gap(30, 45),))
    assert resumed.slots(np.arange(40, 44)).tolist() == [45, 46, 47, 48]
    assert Turns(Start(40, 40), (Gap(30, 40),)).shift == 0


def test_another_number_of_samples_a_step_goes_on_at_the_same_slot() -> None:
    """Seven steps of 6, then steps of 10: turn 70 is the first of step 8."""
    slot = Turns(Start(0, 0)).slot_after(7 * 6)
    assert Turns(Start(7 * 10, slot)).slots(np.arange(70, 80)).tolist() == list(range(42, 52))


def test_epochs_that_are_left_out_whole_have_no_turn() -> None:
    turns = Turns(Start(0, 0), (Gap(10, 10_000_000),), EpochEnds(0, 10, 4))
    assert turns.slots(np.arange(14)).tolist() == [*range(10), NO_SLOT, NO_SLOT, 10_000_000, 10_000_001]


def test_a_shift_is_told_only_where_it_holds_for_all() -> None:
    assert Turns(Start(3, 10)).shift == 7
    assert Turns(Start(3, 10), (Gap(20, 21),)).shift is None
    assert Turns(Start(0, 0), ends=EpochEnds(0, 10, 5)).shift is None


def test_far_turns_cost_nothing_more_and_are_exact() -> None:
    far = 10**15
    turns = Turns(Start(0, 0), (Gap(5, 8),), EpochEnds(0, 1000, 7))
    first = 143 * 7  # turns of an epoch; the first has 997 samples, which need as many
    assert turns.slots(np.array([far * first, far * first + 999, far * first + 1000])).tolist() == [
        far * 1000,
        far * 1000 + 999,
        NO_SLOT,
    ]
