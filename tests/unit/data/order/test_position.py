import json
from collections import Counter
from dataclasses import asdict, replace

import numpy as np
import pytest

from tests.unit.data.order.support import Data, Leg, run
from torchrelay.core.errors import DataError
from torchrelay.data.order import order as order_module
from torchrelay.data.order.course import begin, resume
from torchrelay.data.order.gaps import Gap
from torchrelay.data.order.history import Source
from torchrelay.data.order.itinerary import Itinerary
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


# What users of other trainers met when they resumed; each must be impossible here. The names are the
# projects and numbers of the public reports.

DATA = Data(counts=[[20, 7, 0, 13]], seed=7, lanes=4, window_shards=2)  # 40 samples: 10 steps of 4
N = 40


def leg(steps: int, world: int = 1, *, skip: tuple[Gap, ...] = ()) -> Leg:
    return Leg(steps=steps, world=world, micro_batch=1, units=4, weights=(1,), skip=skip)


def ids(*legs: Leg, data: Data = DATA) -> list[int]:
    return run(data, legs)[0]


WHOLE = ids(leg(30))
FIRST, SECOND = WHOLE[:N], WHOLE[N : 2 * N]


def test_accelerate_2016_a_resume_in_the_second_epoch_keeps_its_order() -> None:
    resumed = ids(leg(13), leg(7))
    assert resumed[N:] == SECOND
    assert SECOND != FIRST


def test_accelerate_4295_a_resume_changes_nothing_but_where_it_begins() -> None:
    course = begin(DATA.plan(leg(1)))
    resumed = resume(course.plan, course.position(20), step=5)
    assert (resumed.plan, resumed.segments, resumed.shift) == (course.plan, course.segments, course.shift)


def test_accelerate_1451_what_was_passed_over_once_is_read_in_the_next_epoch() -> None:
    """Neither the samples before a resume nor those left out on purpose are missing later on."""
    resumed = ids(leg(3), leg(17, skip=(Gap(20, 24),)))
    assert sorted(resumed[N - 4 : 2 * N - 4]) == list(range(N))


def test_accelerate_685_many_short_attempts_read_all_of_the_data() -> None:
    assert ids(*[leg(1)] * 10) == FIRST


@pytest.mark.parametrize("cut", range(1, 20))
def test_lightning_19815_the_step_before_the_cut_is_not_read_again(cut: int) -> None:
    assert ids(leg(cut), leg(20 - cut)) == WHOLE[: 2 * N]


def test_lightning_19403_a_resume_counts_no_step_twice() -> None:
    assert [run(DATA, [leg(5)] * times)[1].global_slot for times in (1, 2, 4)] == [20, 40, 80]


def test_lightning_5325_a_resume_in_mid_epoch_finishes_the_epoch_first() -> None:
    resumed = ids(leg(4), leg(6))
    assert sorted(resumed) == list(range(N))


@pytest.mark.parametrize("step", [1, 10, 10**9])
def test_transformers_11284_and_18649_nothing_is_walked_through_to_get_there(
    monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """660,000 batches in 28 hours, 200,000 in one: here not one more slot is looked at."""
    course = begin(DATA.plan(leg(1)))
    asked: list[int] = []
    permute = order_module.permute
    monkeypatch.setattr(order_module, "permute", lambda x, n, k: asked.append(x.size) or permute(x, n, k))
    resumed = Itinerary(resume(course.plan, course.position(4 * step), step=step), DATA.orders())
    resumed.locate(np.arange(4 * step, 4 * step + 4))
    assert sum(asked) <= N


def test_composer_3649_the_smallest_dataset_keeps_giving_samples() -> None:
    one = Data(counts=[[0, 1]], seed=7, lanes=64, window_shards=10)
    assert ids(leg(3, world=2), leg(2), data=one) == [0] * 20
    stopping = Data(counts=[[3]], seed=7, lanes=64, window_shards=10, stop=True)
    assert Counter(ids(leg(3, world=4), leg(2), data=stopping)) == {0: 5, 1: 5, 2: 5}


@pytest.mark.parametrize("before", [1, 2, 3, 4])
@pytest.mark.parametrize("after", [1, 2, 3, 4])
def test_torchtitan_811_and_megatron_bridge_5637_ranks_that_come_or_go_lose_nothing(
    before: int, after: int
) -> None:
    assert ids(leg(7, before), leg(13, after)) == WHOLE[: 2 * N]


def test_automodel_533_the_position_belongs_to_no_rank() -> None:
    assert run(DATA, [leg(9, 1)])[1] == run(DATA, [leg(9, 4)])[1] == run(DATA, [leg(4, 3), leg(5, 2)])[1]


def test_torchtitan_291_ranks_share_the_samples_and_none_has_another_s() -> None:
    assert max(Counter(ids(leg(10, 4))).values()) == 1


def test_prime_rl_3299_what_is_read_first_after_a_resume_is_where_the_run_stands() -> None:
    """Even when somebody looked at the data before: nothing of a first look is kept."""
    course = begin(DATA.plan(leg(1)))
    orders = DATA.orders()
    Itinerary(course, orders).locate(np.arange(12))
    resumed = Itinerary(resume(course.plan, course.position(68), step=17), orders)
    assert resumed.locate(np.arange(68, 72)).located.sample_ids.tolist() == WHOLE[68:72]
