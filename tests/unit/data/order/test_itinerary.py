import tracemalloc
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.data.order.support import Data, Leg, Read, read_ids, read_one_by_one, run
from torchrelay.data.order.course import Change, Course, Plan, begin, resume
from torchrelay.data.order.gaps import Gap
from torchrelay.data.order.history import Source
from torchrelay.data.order.itinerary import Itinerary
from torchrelay.data.order.order import Order, OrderSettings

SETTINGS = OrderSettings(seed=7, lanes=4, window_shards=2, shuffle=True)
COUNTS = [[30, 0, 41], [17, 9]]


def make(weights: list[float], **fields: Any) -> tuple[Itinerary, list[Order]]:
    orders = [Order(counts, SETTINGS) for counts in COUNTS[: len(weights)]]
    sources = [Source(f"d{n}", f"v{n}", order.num_samples) for n, order in enumerate(orders)]
    values = {"seed": 7, "batch": 6, "sources": tuple(sources), "changes": (Change(0, tuple(weights)),)}
    return Itinerary(begin(Plan(**(values | fields))), orders), orders


def test_one_dataset_goes_straight_to_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    itinerary, orders = make([1])
    monkeypatch.setattr(Course, "locate", None)
    turns = np.array([5, 80, 7])
    located, epochs = itinerary.locate(turns)
    assert located.sample_ids.tolist() == orders[0].samples(turns).sample_ids.tolist()
    assert epochs.tolist() == [0, 1, 0]


def test_sample_ids_and_shards_of_a_mixture_are_numbered_on() -> None:
    itinerary, orders = make([1, 2])
    turns = np.arange(500)
    located, epochs = itinerary.locate(turns)
    parts, own = itinerary.course.locate(turns)
    for index, (part, slot) in enumerate(zip(parts.tolist(), own.tolist(), strict=True)):
        expected = orders[part].samples(np.array([slot]))
        assert located.sample_ids[index] == expected.sample_ids[0] + (0, 71)[part]
        assert located.shards[index] == expected.shards[0] + (0, 3)[part]
        assert located.indexes[index] == expected.indexes[0]
        assert epochs[index] == slot // (71, 26)[part]
    assert set(located.sample_ids.tolist()) == set(range(97))


@pytest.mark.parametrize("fields", [{}, {"skip": (Gap(40, 77),)}, {"fills_epochs": True}])
def test_any_turns_in_any_company_are_the_same(fields: dict[str, Any]) -> None:
    weights = [1.0] if "fills_epochs" in fields else [1.0, 3.0]
    whole = make(weights, **fields)[0].locate(np.arange(3000))
    itinerary = make(weights, **fields)[0]
    for turns in ([3], [2999, 4], [5, 6, 7], [2000], [40, 39], list(range(1000, 2100)), [8]):
        found = itinerary.locate(np.array(turns))
        for ours, theirs in zip((*found.located, found.epochs), (*whole.located, whole.epochs), strict=True):
            assert ours.tolist() == theirs[turns].tolist()


def test_a_turn_without_a_sample_is_minus_one_everywhere() -> None:
    located, epochs = make([1], fills_epochs=True)[0].locate(np.arange(70, 74))
    assert located.indexes.tolist()[1] == located.sample_ids.tolist()[1] == located.shards.tolist()[1] == -1
    assert min(located.indexes[[0, 2, 3]]) >= 0
    assert epochs.tolist() == [0, 0, 1, 1]


def test_a_new_version_has_sample_ids_of_its_own() -> None:
    itinerary, orders = make([1])
    saved = itinerary.course.position(66)
    new = Plan(
        seed=7, batch=6, sources=(Source("d0", "w", 71),), changes=(Change(0, (1.0,)),), migrate_from="v0"
    )
    moved = Itinerary(resume(new, saved, step=11), orders)
    located, epochs = moved.locate(np.arange(66, 137))
    assert sorted(located.sample_ids.tolist()) == list(range(71, 142))
    assert set(epochs.tolist()) == {0}


def test_following_steps_are_served_from_one_block(monkeypatch: pytest.MonkeyPatch) -> None:
    itinerary, _ = make([1, 2])
    asked: list[int] = []
    compute = Itinerary._compute
    monkeypatch.setattr(
        Itinerary, "_compute", lambda self, turns: asked.append(turns.size) or compute(self, turns)
    )
    for step in range(24):
        itinerary.locate(np.arange(4 * step, 4 * step + 4))
    assert asked == [97]  # no more than an epoch


@pytest.mark.parametrize(
    ("weights", "fields"),
    [
        ([1.0], {}),
        ([1.0, 3.0], {"skip": (Gap(40, 77), Gap(9 * 10**9, 10**10))}),
        ([1.0], {"fills_epochs": True, "skip": (Gap(1000, 10**9),)}),
    ],
)
def test_sample_ten_billion_costs_what_sample_ten_costs(weights: list[float], fields: dict[str, Any]) -> None:
    """Memory of a run that is resumed there, and of what it reads, counted by the interpreter."""
    far = 10**10

    def cost(turn: int) -> int:
        itinerary, orders = make(weights, **fields)
        saved = itinerary.course.position(turn // 6 * 6)
        tracemalloc.start()
        again = Itinerary(resume(itinerary.course.plan, saved, step=turn // 6), orders)
        for start in range(turn, turn + 600, 12):
            again.locate(np.arange(start, start + 12))
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return peak

    near = cost(12)
    assert cost(far + 8) < 1.2 * near + 20_000
    assert near < 1_500_000


def test_an_epoch_of_ten_billion_samples_needs_memory_for_its_shards_alone() -> None:
    shards = 2000
    tracemalloc.start()
    order = Order(np.full(shards, 5_000_000), SETTINGS)
    plan = Plan(
        seed=7, batch=1024, sources=(Source("d", "v", order.num_samples),), changes=(Change(0, (1.0,)),)
    )
    step = 9 * 10**9 // 1024
    course = resume(plan, begin(plan).position(step * 1024), step=step)
    ids = Itinerary(course, [order]).locate(np.arange(step * 1024, (step + 1) * 1024)).located.sample_ids
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert order.num_samples == 10**10
    assert len(set(ids.tolist())) == 1024 and ids.max() < 10**10
    assert peak < 1000 * shards


# Whatever happens to a run, all its ranks together read the planned order. A run is cut a few times.
# At every cut the number of processes may change, the micro-batch, the samples of a step, the weights of
# a mixture and what is left out. Every rank has readers of its own and asks for its units as training
# does; a cut goes through the position as a checkpoint keeps it.

shards = st.lists(st.sampled_from([0, 1, 1, 2, 7, 20]), min_size=1, max_size=12).filter(any)
gaps = st.lists(st.builds(lambda a, n: Gap(a, a + n), st.integers(0, 250), st.integers(1, 60)), max_size=3)


def datasets(most: int, **fields: Any) -> st.SearchStrategy[Data]:
    return st.builds(
        Data,
        counts=st.lists(shards, min_size=most, max_size=most),
        seed=st.integers(0, 2**63 - 1),
        lanes=st.integers(1, 70),
        window_shards=st.integers(1, 12),
        shuffle=st.booleans(),
        **fields,
    )


@st.composite
def legs(draw: st.DrawFn, parts: int, *, units: int | None = None, skip: bool = False) -> list[Leg]:
    """Legs of one batch size if `units` is given, else each of its own."""
    found = []
    size = draw(st.integers(1, 3))
    for _ in range(draw(st.integers(1, 4))):
        micro_batch = size if units else draw(st.integers(1, 5))
        count = units or draw(st.integers(1, 12))
        found.append(
            Leg(
                steps=draw(st.integers(0, 9)),
                world=draw(st.integers(1, min(8, count))),
                micro_batch=micro_batch,
                units=count,
                weights=(1,) * parts,
                skip=tuple(draw(gaps)) if skip else (),
            )
        )
    return found


def planned(data: Data, count: int, skip: Sequence[Gap] = ()) -> list[int]:
    """The first samples of one dataset in its order, those of some slots left out."""
    slots = [slot for slot in range(3 * count + 700) if not any(g.start <= slot < g.stop for g in skip)]
    ids: list[int] = data.orders()[0].samples(np.array(slots[:count], np.int64)).sample_ids.tolist()
    return ids


@pytest.mark.parametrize("read", [read_ids, read_one_by_one])
@given(data=datasets(1), path=legs(1))
@settings(deadline=None, max_examples=40)
def test_all_ranks_over_all_cuts_read_the_planned_order(read: Read, data: Data, path: list[Leg]) -> None:
    """The samples of a step may differ from leg to leg: each goes on at the slot where the last ended."""
    ids, position = run(data, path, read)
    count = sum(leg.steps * leg.batch for leg in path)
    assert len(ids) == count == position.global_slot
    assert ids == planned(data, count)
    n = sum(data.counts[0])
    for epoch in range(count // n):
        assert sorted(ids[epoch * n : (epoch + 1) * n]) == list(range(n))
    rest = ids[count // n * n :]
    assert len(set(rest)) == len(rest)


@given(data=datasets(1), path=legs(1, skip=True))
@settings(deadline=None, max_examples=40)
def test_what_is_left_out_is_what_the_recipe_of_each_leg_says_of_the_slots_still_to_come(
    data: Data, path: list[Leg]
) -> None:
    ids, position = run(data, path)
    expected: list[int] = []
    slot = 0
    for leg in path:
        left = leg.steps * leg.batch
        while left:
            if not any(gap.start <= slot < gap.stop for gap in leg.skip):
                expected.append(slot)
                left -= 1
            slot = slot + 1
        slot = expected[-1] + 1 if expected else 0
    assert position.global_slot == slot
    assert ids == data.orders()[0].samples(np.array(expected, np.int64)).sample_ids.tolist()


@given(data=datasets(1, stop=st.just(True)), path=legs(1, units=8))
@settings(deadline=None, max_examples=40)
def test_epochs_that_end_with_a_step_lose_and_repeat_nothing(data: Data, path: list[Leg]) -> None:
    ids, position = run(data, path)
    n, batch = sum(data.counts[0]), path[0].batch
    steps = sum(leg.steps for leg in path)
    epochs, rest = divmod(steps, -(-n // batch))
    assert len(ids) == epochs * n + rest * batch == position.global_slot
    assert ids == planned(data, len(ids))


@given(data=datasets(3), path=legs(3, skip=False), drawn=st.data())
@settings(deadline=None, max_examples=12)
def test_a_mixture_reads_every_part_in_its_own_order_over_all_cuts(
    data: Data, path: list[Leg], drawn: st.DataObject
) -> None:
    weights = st.tuples(*[st.integers(0, 4)] * 3).filter(any)
    path = [leg._replace(weights=drawn.draw(weights)) for leg in path]
    ids, position = run(data, path)
    alone = [leg._replace(world=1, micro_batch=1, units=leg.batch) for leg in path]
    assert (ids, position) == run(data, alone)
    base = 0
    for order in data.orders():
        own = [i - base for i in ids if base <= i < base + order.num_samples]
        assert own == order.samples(np.arange(len(own))).sample_ids.tolist()
        base += order.num_samples
    assert len(ids) == position.global_slot


@given(data=datasets(2), path=legs(2, units=6, skip=False), skip=gaps.map(tuple))
@settings(deadline=None, max_examples=12)
def test_cuts_change_nothing_in_a_mixture_with_slots_left_out(
    data: Data, path: list[Leg], skip: tuple[Gap, ...]
) -> None:
    cut = [leg._replace(weights=(1, 3), skip=skip) for leg in path]
    whole = cut[0]._replace(steps=sum(leg.steps for leg in cut), world=1)
    assert run(data, cut) == run(data, [whole])
    sources = [Source(f"d{n}", f"v{n}", sum(counts)) for n, counts in enumerate(data.counts)]
    assert len({part.base for part in run(data, cut)[1].segments[-1].parts}) == len(sources)
