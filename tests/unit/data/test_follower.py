from typing import Any

import numpy as np
import pytest

from torchrelay.data import follower as follower_module
from torchrelay.data.cache.agenda import Route
from torchrelay.data.follower import Part, Span, start_follower
from torchrelay.data.order.course import Change, Course, Plan, begin, resume
from torchrelay.data.order.gaps import Gap
from torchrelay.data.order.history import Source
from torchrelay.data.order.order import Order, OrderSettings
from torchrelay.data.order.outlook import SlotPattern
from torchrelay.recipe.data_schema import CacheSection

ORDER = Order([50, 50], OrderSettings(seed=7, lanes=2, window_shards=1, shuffle=True))
PATTERN = SlotPattern(10, 4, 2)


class Planned:
    """A planner that remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[int] = []
        self.is_closed = False

    def advance(self, slot: int) -> None:
        self.told.append(slot)

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Route, int | None, Planned]]:
    found: list[tuple[Route, int | None, Planned]] = []

    def start(shards: Any, route: Route, section: CacheSection, *, stop: int | None) -> Planned | None:
        if shards is None:
            return None
        found.append((route, stop, Planned()))
        return found[-1][2]

    monkeypatch.setattr(follower_module, "start_planner", start)
    return found


def plan(*weights: float, **fields: Any) -> Plan:
    sources = tuple(Source(f"d{n}", f"v{n}", 100) for n in range(len(weights)))
    return Plan(seed=7, batch=10, sources=sources, changes=(Change(0, weights),), **fields)


def follow(course: Course, *shards: Any) -> Any:
    parts = [Part(ORDER, of_part) for of_part in shards]
    first = course.turns.start.turn
    return start_follower(course, parts, PATTERN, Span(first, first + 400), CacheSection())


def test_one_dataset_is_followed_slot_by_slot(started: list[tuple[Route, int | None, Planned]]) -> None:
    follower = follow(begin(plan(1)), "shards")
    ((route, stop, planner),) = started
    assert (route, stop) == (Route(ORDER, PATTERN, 0), 400)
    for turn in (0, 10, 20):
        follower.advance(turn)
    assert planner.told == [0, 10, 20]
    follower.close()
    assert planner.is_closed


@pytest.mark.parametrize(
    ("slot", "pattern"), [(13, SlotPattern(10, 7, 2)), (15, None), (16, SlotPattern(10, 0, 2))]
)
def test_where_turns_and_slots_do_not_begin_together_the_pattern_moves(
    started: list[tuple[Route, int | None, Planned]], slot: int, pattern: SlotPattern | None
) -> None:
    """Resumed at turn 20 = slot `slot`; turns 4 and 5 of each ten are slots 4 + (slot - 20) …"""
    saved = begin(plan(1)).position(slot)
    follower = follow(resume(plan(1), saved, step=2), "shards")
    ((route, stop, planner),) = started
    assert (route, stop) == (Route(ORDER, pattern, slot), slot + 400)
    follower.advance(30)
    assert planner.told == [slot + 10]


@pytest.mark.parametrize("fields", [{"skip": (Gap(30, 40),)}, {"fills_epochs": True}])
def test_without_an_even_step_any_slot_may_be_read(
    started: list[tuple[Route, int | None, Planned]], fields: dict[str, Any]
) -> None:
    follow(begin(plan(1, **fields)), "shards")
    assert started[0][0] == Route(ORDER, None, 0)


def test_the_parts_of_a_mixture_are_told_now_and_then_where_they_stand(
    started: list[tuple[Route, int | None, Planned]],
) -> None:
    course = begin(plan(1, 3))
    follower = follow(course, "shards", "shards")
    for turn in range(0, 600, 10):
        follower.advance(turn)
    parts = course.locate(np.arange(260)).parts
    for number, (route, _, planner) in enumerate(started):
        assert route == Route(ORDER, None, 0)
        assert planner.told[:2] == [0, int((parts == number).sum())]
        assert len(planner.told) == 3
    assert sum(stop or 0 for _, stop, _ in started) == 400


def test_nothing_to_fetch_is_nothing_to_follow(started: list[tuple[Route, int | None, Planned]]) -> None:
    nothing = follow(begin(plan(1)), None)
    nothing.advance(300)
    nothing.close()
    assert started == []
    follower = follow(begin(plan(1, 1)), None, "shards")
    follower.advance(300)
    follower.close()
    assert len(started[0][2].told) == 1
