from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchrelay.core.errors import DataError
from torchrelay.data.order.course import Change, Course, Plan, begin, read_once, resume
from torchrelay.data.order.gaps import Gap
from torchrelay.data.order.history import Source

SOURCES = (Source("a", "a1", 100), Source("b", "b1", 50), Source("c", "c1", 10))


def plan(*weights: Sequence[float], batch: int = 10, **fields: object) -> Plan:
    """Weights at step 0, 100, 200, …"""
    sources = SOURCES[: len(weights[0])]
    changes = tuple(Change(100 * index, tuple(of_all)) for index, of_all in enumerate(weights))
    return Plan(seed=7, batch=batch, sources=sources, changes=changes, **fields)  # type: ignore[arg-type]


def read(course: Course, first_step: int, last_step: int) -> list[tuple[int, int]]:
    """Source and own slot of every turn of some steps; (-1, -1) for none."""
    batch = course.plan.batch
    slots = course.turns.slots(np.arange((first_step - 1) * batch, last_step * batch))
    real = course.locate(slots[slots >= 0])
    pairs = iter(zip(real.parts.tolist(), real.own.tolist(), strict=True))
    return [next(pairs) if slot >= 0 else (-1, -1) for slot in slots.tolist()]


def test_one_dataset_is_read_slot_by_slot() -> None:
    course = begin(plan([1]))
    assert course.shift == 0
    assert read(course, 1, 3) == [(0, own) for own in range(30)]
    position = course.position(30)
    assert (position.global_slot, position.dataset_version, position.segments) == (30, "a1", course.segments)


def test_a_curriculum_changes_the_weights_at_its_steps_and_loses_no_sample() -> None:
    course = begin(plan([1, 0], [1, 3], [0, 1]))
    assert [segment.start for segment in course.segments] == [0, 1000, 2000]
    found = read(course, 1, 300)
    assert found[:1000] == [(0, own) for own in range(1000)]
    assert abs(sum(part for part, _ in found[1000:2000]) - 750) < 40
    assert {part for part, _ in found[2000:]} == {1}
    for part in (0, 1):
        own = [own for number, own in found if number == part]
        assert own == list(range(len(own)))
    assert course.own_slots(2000) == [sum(part == number for part, _ in found[:2000]) for number in (0, 1)]


steps = st.integers(0, 320)
weights = st.lists(st.integers(0, 5), min_size=3, max_size=3).filter(any)
skips = st.lists(st.builds(lambda a, n: Gap(a, a + n), st.integers(0, 3000), st.integers(1, 200)), max_size=3)


@given(
    curriculum=st.lists(weights, min_size=1, max_size=3),
    skip=skips.map(tuple),
    cuts=st.lists(steps, max_size=3),
)
@settings(deadline=None, max_examples=40)
def test_a_run_that_is_cut_anywhere_reads_what_it_would_have_read(
    curriculum: list[list[int]], skip: tuple[Gap, ...], cuts: list[int]
) -> None:
    wanted = plan(*curriculum, skip=skip)
    whole = begin(wanted)
    expected = read(whole, 1, 330)
    course, done, found = whole, 0, []
    for step in sorted(cuts):
        found += read(course, done + 1, step)
        saved = course.position(step * wanted.batch)
        assert saved == whole.position(step * wanted.batch)
        course, done = resume(wanted, saved, step=step), step
    assert found + read(course, done + 1, 330) == expected


@given(before=weights, after=weights, step=steps, batch=st.integers(1, 25))
@settings(deadline=None, max_examples=40)
def test_new_weights_and_another_batch_count_from_where_a_run_is_resumed(
    before: list[int], after: list[int], step: int, batch: int
) -> None:
    first = begin(plan(before))
    saved = first.position(step * 10)
    wanted = plan(after, batch=batch, may_add=True)
    second = resume(wanted, saved, step=step)
    assert second.turns.slots(np.array([step * batch])).tolist() == [saved.global_slot] == [10 * step]
    found = read(first, 1, step) + read(second, step + 1, step + 400 // batch)
    for number in range(3):
        own = [own for part, own in found if part == number]
        assert own == list(range(len(own)))
    assert second.position((step + 3) * batch).global_slot == 10 * step + 3 * batch
    history = second.position((step + 3) * batch).segments
    assert history[0].start == 0 and history[-1].start in (0, 10 * step)


def test_what_the_recipe_says_of_the_past_changes_nothing() -> None:
    """The run is at step 150; the curriculum's point of step 100 is history, that of step 200 is not."""
    wanted = plan([1, 1], [1, 3], [3, 1])
    saved = begin(wanted).position(1500)
    other_past = replace(wanted, changes=(Change(0, (9.0, 1.0)), Change(50, (1.0, 3.0)), *wanted.changes[2:]))
    assert read(resume(other_past, saved, step=150), 151, 300) == read(begin(wanted), 151, 300)
    assert resume(wanted, saved, step=150).segments == begin(wanted).segments


def test_a_segment_that_begins_where_the_run_stands_is_not_history_yet() -> None:
    wanted = plan([1, 1], [1, 3])
    course = begin(wanted)
    assert len(course.position(999).segments) == len(course.position(1000).segments) == 1
    assert len(course.position(1001).segments) == 2
    again = resume(replace(wanted, changes=wanted.changes[:1]), course.position(1000), step=100)
    assert len(again.segments) == 1


def test_a_new_version_is_read_from_its_start_once_the_old_one_is_named() -> None:
    saved = begin(plan([1])).position(730)
    new = replace(plan([1]), sources=(Source("a", "a2", 40),))
    with pytest.raises(
        DataError, match="has read version a1 of its data up to slot 730; now a is version a2"
    ):
        resume(new, saved, step=73)
    course = resume(replace(new, migrate_from="a1"), saved, step=73)
    assert read(course, 74, 76) == [(0, own) for own in range(30)]
    assert course.bases() == [100]
    later = course.position(760)
    assert (later.dataset_version, later.global_slot, len(later.segments)) == ("a2", 760, 2)
    assert read(resume(new, later, step=76), 77, 77) == [(0, own) for own in range(30, 40)]


def test_epochs_that_end_with_a_step_begin_anew_with_a_new_version() -> None:
    wanted = plan([1], batch=8, fills_epochs=True)  # 13 steps of 8 for 100 samples
    saved = begin(wanted).position(11 * 8)
    new = replace(wanted, sources=(Source("a", "a2", 20),), migrate_from="a")
    course = resume(new, saved, step=11)
    nothing = [(-1, -1)] * 4
    assert read(course, 12, 14) == [*((0, own) for own in range(20)), *nothing]
    assert read(course, 15, 17) == [*((0, own) for own in range(20, 40)), *nothing]


def test_a_dataset_under_another_name_ends_its_epoch_where_it_would_have() -> None:
    wanted = plan([1], batch=8, fills_epochs=True)
    renamed = replace(wanted, sources=(SOURCES[0]._replace(dataset="copy"),))
    course = resume(renamed, begin(wanted).position(3 * 8), step=3)
    assert read(course, 4, 30) == read(begin(wanted), 4, 30)


def test_reading_once_goes_through_all_sources() -> None:
    course = read_once(plan([1, 1, 1]))
    found = course.locate(np.arange(160))
    assert found.parts.tolist() == [0] * 100 + [1] * 50 + [2] * 10
    assert found.own.tolist() == [*range(100), *range(50), *range(10)]
    assert course.bases() == [0, 100, 150]
