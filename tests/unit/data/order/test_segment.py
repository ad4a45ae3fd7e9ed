import numpy as np
import pytest

from torchrelay.data.order.history import Segment, Source
from torchrelay.data.order.segment import Stretch, chain, first_segment, next_segment

A, B, C = Source("a", "a1", 100), Source("b", "b1", 50), Source("c", "c1", 10)


def table(segment: Segment) -> list[tuple[str, str, float, int, int]]:
    return [(part.dataset, part.version, part.weight, part.first, part.base) for part in segment.parts]


def counts(segment: Segment, stop: int) -> list[int]:
    parts = Stretch(segment, 7).locate(np.arange(segment.start, stop)).parts
    return np.bincount(parts, minlength=len(segment.parts)).tolist()


def test_a_run_begins_with_every_part_at_its_slot_0() -> None:
    assert table(first_segment([A, B], [3, 1])) == [("a", "a1", 3.0, 0, 0), ("b", "b1", 1.0, 0, 100)]


def test_new_weights_go_on_where_every_part_was_left() -> None:
    first = first_segment([A, B], [3, 1])
    second = next_segment([first], [A, B], [1, 1], 1003, 7)
    read = counts(first, 1003)
    assert sum(read) == 1003
    assert table(second) == [("a", "a1", 1.0, read[0], 0), ("b", "b1", 1.0, read[1], 100)]
    assert Stretch(second, 7).own_slots(1003) == read
    more = counts(second, 2003)
    assert Stretch(second, 7).own_slots(2003) == [read[0] + more[0], read[1] + more[1]]


@pytest.mark.parametrize("weights", [[3, 1], [0.75, 0.25], [0.3, 0.1]])
def test_the_same_shares_are_the_same_segment(weights: list[float]) -> None:
    first = first_segment([A, B], [3, 1])
    assert next_segment([first], [A, B], weights, 500, 7) is first
    assert next_segment([first], [B, A], weights[::-1], 500, 7) is first


def test_a_part_that_is_dropped_and_comes_back_goes_on_and_keeps_its_sample_ids() -> None:
    first = first_segment([A, B], [1, 1])
    without = next_segment([first], [A], [1], 40, 7)
    read = counts(first, 40)
    assert table(without) == [("a", "a1", 1.0, read[0], 0), ("b", "b1", 0.0, read[1], 100)]
    again = next_segment([first, without], [C, B, A], [1, 1, 2], 60, 7)
    assert sorted(table(again)) == [
        ("a", "a1", 2.0, read[0] + 20, 0),
        ("b", "b1", 1.0, read[1], 100),
        ("c", "c1", 1.0, 0, 150),
    ]


def test_a_new_version_begins_at_its_slot_0_with_sample_ids_of_its_own() -> None:
    first = first_segment([A, B], [1, 1])
    second = next_segment([first], [A._replace(version="a2", samples=120), B], [1, 1], 40, 7)
    read = counts(first, 40)
    assert table(second) == [("a", "a2", 1.0, 0, 150), ("b", "b1", 1.0, read[1], 100)]
    third = next_segment([first, second], [A._replace(version="a3"), B], [1, 1], 60, 7)
    assert table(third)[0] == ("a", "a3", 1.0, 0, 270)


def test_the_same_version_under_another_name_goes_on() -> None:
    first = first_segment([A], [1])
    assert table(next_segment([first], [A._replace(dataset="copy")], [1], 30, 7)) == [
        ("copy", "a1", 1.0, 30, 0)
    ]


def test_a_name_that_moves_to_another_version_leaves_both_parts_whole() -> None:
    """`a` is renamed to `b`, and `a` is something new."""
    first = first_segment([A], [1])
    second = next_segment([first], [Source("a", "a2", 5), Source("b", "a1", 100)], [1, 1], 30, 7)
    assert sorted(table(second)) == [("a", "a2", 1.0, 0, 100), ("b", "a1", 1.0, 30, 0)]


def test_a_part_with_weight_0_is_known_from_the_start() -> None:
    first = first_segment([A], [1])
    second = next_segment([first], [A, B], [1, 0], 30, 7)
    assert table(second) == [("a", "a1", 1.0, 30, 0), ("b", "b1", 0.0, 0, 100)]
    assert Stretch(second, 7).shift == 0
    assert set(Stretch(second, 7).locate(np.arange(30, 90)).parts.tolist()) == {0}


def test_a_chain_reads_every_source_once() -> None:
    segments = chain([A, B, C])
    assert [segment.start for segment in segments] == [0, 100, 150]
    assert [part.base for part in segments[2].parts] == [0, 100, 150]
    found = Stretch(segments[1], 7).locate(np.arange(100, 150))
    assert set(found.parts.tolist()) == {1}
    assert found.own.tolist() == list(range(50))
