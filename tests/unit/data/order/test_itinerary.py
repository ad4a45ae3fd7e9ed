import tracemalloc
from typing import Any

import numpy as np
import pytest

from torchrelay.data.order.course import Change, Course, Plan, begin, resume
from torchrelay.data.order.gaps import Gap
from torchrelay.data.order.history import Source
from torchrelay.data.order.itinerary import Itinerary
from torchrelay.data.order.order import BLOCK_SLOTS, Order, OrderSettings

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
    for step in range(BLOCK_SLOTS // 4):
        itinerary.locate(np.arange(4 * step, 4 * step + 4))
    assert asked == [BLOCK_SLOTS]


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
