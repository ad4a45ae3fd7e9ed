"""Fetches ahead for all parts of a reader: each part's planner is told how far the run has come."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from torchrelay.data.cache.agenda import Route
from torchrelay.data.cache.choose import check_room, start_planner
from torchrelay.data.cache.planner import Planner
from torchrelay.data.open_shards import OpenShards
from torchrelay.data.order.course import Course
from torchrelay.data.order.order import Order
from torchrelay.data.order.outlook import SlotPattern
from torchrelay.recipe.data_schema import CacheSection

_TOLD_TURNS = 256
"""Turns after which the planners of a mixture are told anew."""


class Part(NamedTuple):
    """One dataset of a reader."""

    order: Order
    shards: OpenShards[Any]


class Span(NamedTuple):
    """Turns that are still to come: first … stop-1."""

    first: int
    stop: int


class Follower:
    """The planners of the parts that are fetched ahead; made by `start_follower`."""

    def __init__(self, course: Course, planners: Sequence[Planner | None] = ()) -> None:
        self._course = course
        self._planners = planners
        self._shift = course.shift
        self._next_turn = 0

    def advance(self, turn: int) -> None:
        """The turns below `turn` are done. Cheap."""
        if not self._planners:
            return
        if self._shift is not None:
            if self._planners[0] is not None:
                self._planners[0].advance(turn + self._shift)
        elif turn >= self._next_turn:
            self._next_turn = turn + _TOLD_TURNS
            own = self._course.own_slots(self._course.turns.slot_after(turn))
            for planner, slot in zip(self._planners, own, strict=True):
                if planner is not None:
                    planner.advance(slot)

    def close(self) -> None:
        """Stop fetching."""
        for planner in self._planners:
            if planner is not None:
                planner.close()


def check_parts(
    course: Course, parts: Sequence[Part], node: SlotPattern | None, section: CacheSection
) -> None:
    """RecipeError when the node's cache is too small; `node`: the turns that all its processes read."""
    own = course.own_slots(course.turns.slot_after(course.turns.start.turn))
    pattern = _own_pattern(course, node)
    routed = [(part.shards, Route(part.order, pattern, slot)) for part, slot in zip(parts, own, strict=True)]
    check_room(routed, section)


def start_follower(
    course: Course, parts: Sequence[Part], pattern: SlotPattern | None, turns: Span, section: CacheSection
) -> Follower:
    """Planners for a reader that goes on along `course`; none where nothing has to be fetched.

    `pattern`: the turns that this process reads, None where it may be any; see `choose.start_planner`.
    """
    first = course.own_slots(course.turns.slot_after(turns.first))
    stop = course.own_slots(course.turns.slot_after(turns.stop))
    planners = [
        start_planner(part.shards, Route(part.order, _own_pattern(course, pattern), slot), section, stop=end)
        for part, slot, end in zip(parts, first, stop, strict=True)
    ]
    return Follower(course, planners if any(planners) else ())


def _own_pattern(course: Course, pattern: SlotPattern | None) -> SlotPattern | None:
    """The pattern in the own slots of the only part, where turns and own slots keep step."""
    if pattern is None or course.shift is None:
        return None
    moved = (pattern.first + course.shift) % pattern.global_batch
    fits = moved + pattern.count <= pattern.global_batch
    return replace(pattern, first=moved) if fits else None
