from collections.abc import Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from torchrelay.data.build.shard_plan import Position, ShardPlan, ShardPlanner, Span

Rows = Sequence[tuple[int, bool]]
"""Size, and whether the document ends."""

units = st.lists(
    st.lists(st.tuples(st.integers(1, 30), st.booleans()), min_size=1, max_size=8), min_size=1, max_size=8
)


def plan(
    pieces: Sequence[Rows], capacity: int, *, cuts: bool = True, start: Position | None = None
) -> list[ShardPlan]:
    """Plans for units 0, 1, …; a build that goes on gives no unit that is not needed any more."""
    start = start or Position()
    planner = ShardPlanner("train", capacity, start, cuts=cuts)
    plans: list[ShardPlan] = []
    for number, rows in enumerate(pieces):
        if number >= start.unit:
            sizes, last = zip(*rows, strict=True)
            plans += planner.add(number, np.array(sizes), np.array(last))
    return [*plans, *planner.close()]


def expected(pieces: Sequence[Rows], capacity: int, *, cuts: bool) -> list[int]:
    """Sizes of the shards, item by item as somebody would fill them by hand."""
    shards: list[int] = []
    ended = unfinished = 0  # items of the open shard: of documents that ended, and of the one that has not
    stream = [(size, last) for rows in pieces for size, last in rows]
    for size, last in stream:
        for place in range(size):
            if ended + unfinished == capacity and ended:
                shards.append(ended)
                ended = 0
            elif unfinished == capacity and cuts:
                shards.append(unfinished)
                unfinished = 0
            unfinished += 1
            if last and place == size - 1:
                ended, unfinished = ended + unfinished, 0
                if ended > capacity:  # a document larger than a shard, which may not be cut
                    shards.append(ended)
                    ended = 0
    return shards + ([ended + unfinished] if ended + unfinished else [])


def sizes_of(plans: Sequence[ShardPlan]) -> list[int]:
    return [sum(span.stop - span.start for span in made.spans) for made in plans]


@given(pieces=units, capacity=st.integers(1, 40))
@settings(max_examples=150, deadline=None)
def test_shards_are_what_filling_them_one_by_one_gives(pieces: list[Rows], capacity: int) -> None:
    assert sizes_of(plan(pieces, capacity)) == expected(pieces, capacity, cuts=True)


@given(pieces=units, capacity=st.integers(1, 40))
@settings(max_examples=50, deadline=None)
def test_every_item_is_in_one_shard_in_order(pieces: list[Rows], capacity: int) -> None:
    for cuts in (True, False):
        items = [
            (s.unit, k)
            for made in plan(pieces, capacity, cuts=cuts)
            for s in made.spans
            for k in range(s.start, s.stop)
        ]
        assert items == [
            (n, k) for n, rows in enumerate(pieces) for k in range(sum(size for size, _ in rows))
        ]


@given(pieces=units, capacity=st.integers(1, 40), cuts=st.booleans())
@settings(max_examples=60, deadline=None)
def test_going_on_from_any_position_gives_the_same_plans(
    pieces: list[Rows], capacity: int, cuts: bool
) -> None:
    whole = plan(pieces, capacity, cuts=cuts)
    for number, made in enumerate(whole):
        assert made.first.shards == number
        assert plan(pieces, capacity, cuts=cuts, start=made.first) == whole[number:]
        assert made.spans[0].unit >= made.first.unit


@given(pieces=units, capacity=st.integers(1, 40))
@settings(max_examples=50, deadline=None)
def test_where_shards_are_cut_does_not_depend_on_the_units(pieces: list[Rows], capacity: int) -> None:
    together = [[row for rows in pieces for row in rows]]
    one_by_one = [[row] for row in together[0]]
    assert sizes_of(plan(pieces, capacity)) == sizes_of(plan(together, capacity))
    assert sizes_of(plan(pieces, capacity)) == sizes_of(plan(one_by_one, capacity))
    carried = [made.first.carried for made in plan(pieces, capacity)]
    assert carried == [made.first.carried for made in plan(one_by_one, capacity)]


def test_a_sample_larger_than_a_shard_gets_one_of_its_own() -> None:
    assert sizes_of(plan([[(3, True), (25, True), (4, True)]], 10, cuts=False)) == [3, 25, 4]


def test_what_was_carried_is_counted_from_the_start_of_the_document() -> None:
    plans = plan([[(2, True), (15, False)], [(10, True), (1, True)]], 10)
    assert [made.spans for made in plans] == [
        (Span(0, 0, 2),),
        (Span(0, 2, 12),),
        (Span(0, 12, 17), Span(1, 0, 5)),
        (Span(1, 5, 11),),
    ]
    assert [made.first.carried for made in plans] == [0, 0, 10, 20]
    assert plans[-1].after == Position(4, 2, 0, 0)
