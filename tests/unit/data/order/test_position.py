import json
from dataclasses import asdict, replace

import pytest

from torchrelay.core.errors import DataError
from torchrelay.data.order.history import Source
from torchrelay.data.order.position import DataPosition, check_order, check_sources, combine_versions
from torchrelay.data.order.segment import first_segment, next_segment

OLD, NEW = "ab" * 32, "cd" * 32
STORIES = Source("stories", OLD, 100)
OTHER = Source("other", "ef" * 32, 30)
HERE = DataPosition(
    dataset_version=OLD,
    seed=7,
    order_version=1,
    global_slot=1200,
    segments=(first_segment([STORIES], [1]),),
)


def check(*sources: Source, migrate_from: str | None = None, may_add: bool = False) -> None:
    check_sources(HERE, sources, migrate_from=migrate_from, may_add=may_add)


def test_a_position_comes_back_from_json() -> None:
    segments = (*HERE.segments, next_segment(HERE.segments, [STORIES, OTHER], [1, 3], 1000, 7))
    position = replace(HERE, segments=segments)
    assert DataPosition.from_json(json.loads(json.dumps(asdict(position)))) == position


@pytest.mark.parametrize("fields", [{"segments": []}, {"segments": [{"start": 0}]}, {"more": 1}])
def test_what_is_no_position_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises((ValueError, TypeError, KeyError)):
        DataPosition.from_json(json.loads(json.dumps(asdict(HERE))) | fields)


def test_the_version_of_a_mixture_is_that_of_all_its_parts() -> None:
    assert combine_versions([OLD]) == OLD
    assert len(combine_versions([OLD, NEW])) == 64
    assert combine_versions([OLD, NEW]) != combine_versions([NEW, OLD])


def test_the_same_data_may_go_on() -> None:
    check(STORIES)
    check(STORIES._replace(dataset="a copy of it"))


def test_another_version_is_refused_with_both_and_what_to_write() -> None:
    with pytest.raises(DataError) as caught:
        check(STORIES._replace(version=NEW))
    assert "version abababababab of its data up to slot 1,200" in caught.value.message
    assert "now stories is version cdcdcdcdcdcd" in caught.value.message
    assert "NAME@abababababab" in caught.value.hint
    assert "data.migrate_from: abababababab" in caught.value.hint


def test_another_version_may_take_the_place_of_the_one_that_is_named() -> None:
    check(STORIES._replace(version=NEW), migrate_from="abab")
    check(Source("another", NEW, 5), migrate_from=OLD)
    with pytest.raises(DataError, match="has read version abababababab"):
        check(STORIES._replace(version=NEW), migrate_from="cdcd")


def test_a_part_may_be_added_to_a_mixture_and_only_there() -> None:
    check(STORIES, OTHER, may_add=True)
    check(OTHER, may_add=True)
    with pytest.raises(DataError, match="now other is version efefefefefef"):
        check(OTHER)
    with pytest.raises(DataError, match="now stories is version cdcdcdcdcdcd"):
        check(STORIES._replace(version=NEW), OTHER, may_add=True)


def test_another_seed_or_order_is_refused_with_both() -> None:
    check_order(HERE, seed=7, order_version=1)
    with pytest.raises(DataError, match=r"run\.seed 7; now the seed is 8"):
        check_order(HERE, seed=8, order_version=1)
    with pytest.raises(DataError, match="order version 1; this torchrelay has order version 2"):
        check_order(HERE, seed=7, order_version=2)
