import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchrelay.data.order.permutation import make_key, mix, mix_int, permute


def whole(size: int, key: int) -> list[int]:
    positions = np.arange(size, dtype=np.uint64)
    sizes = np.full(size, size, np.uint64)
    keys = np.full(size, key, np.uint64)
    return [int(image) for image in permute(positions, sizes, keys)]


def test_every_small_size_is_permuted_one_to_one() -> None:
    for size in range(1, 150):
        assert sorted(whole(size, make_key(size))) == list(range(size))


@given(size=st.integers(1, 20_000), key=st.integers(0, 2**64 - 1))
@settings(max_examples=40, deadline=None)
def test_any_size_and_key_is_permuted_one_to_one(size: int, key: int) -> None:
    assert sorted(whole(size, key)) == list(range(size))


def test_each_position_follows_its_own_size_and_key() -> None:
    sizes = np.array([7, 1000, 7, 1000], np.uint64)
    keys = np.array([1, 1, 2, 2], np.uint64)
    mixed = permute(np.array([3, 500, 3, 500], np.uint64), sizes, keys)
    assert [int(x) for x in mixed] == [
        whole(7, 1)[3],
        whole(1000, 1)[500],
        whole(7, 2)[3],
        whole(1000, 2)[500],
    ]


def test_huge_windows_stay_inside() -> None:
    size = np.full(1000, 2**52 + 12345, np.uint64)
    images = permute(np.arange(1000, dtype=np.uint64), size, np.full(1000, 9, np.uint64))
    assert len(set(images.tolist())) == 1000
    assert int(images.max()) < 2**52 + 12345
    assert int(images.max()) > 2**51  # spread over the whole range, not clustered at its start


@pytest.mark.parametrize("size", [2, 3, 4, 5, 6])
def test_every_order_of_a_few_appears_about_equally_often(size: int) -> None:
    orders = list(itertools.permutations(range(size)))
    trials = 50 * len(orders) + 5000
    positions = np.tile(np.arange(size, dtype=np.uint64), trials)
    keys = np.repeat(mix(np.arange(trials, dtype=np.uint64)), size)
    images = permute(positions, np.full(positions.size, size, np.uint64), keys).reshape(trials, size)
    counts = Counter(map(tuple, images.tolist()))
    expected = trials / len(orders)
    chi_square = sum((counts[order] - expected) ** 2 / expected for order in orders)
    freedom = len(orders) - 1
    assert chi_square - freedom < 4 * (2 * freedom) ** 0.5


@pytest.mark.parametrize("size", [10, 100, 1000])
def test_a_position_lands_everywhere_about_equally_often(size: int) -> None:
    trials = 100 * size
    keys = mix(np.arange(trials, dtype=np.uint64))
    for position in (0, size // 2, size - 1):
        fixed = np.full(trials, position, np.uint64)
        images = permute(fixed, np.full(trials, size, np.uint64), keys)
        counts = np.bincount(images.astype(np.int64), minlength=size)
        chi_square = float(((counts - 100) ** 2 / 100).sum())
        assert abs(chi_square - (size - 1)) < 5 * (2 * (size - 1)) ** 0.5


def test_neighbours_are_torn_apart() -> None:
    size = 10_000
    images = np.array(whole(size, make_key(5)), np.int64)
    steps = np.abs(np.diff(images))
    assert abs(float(steps.mean()) / size - 1 / 3) < 0.02  # two random places are a third apart
    assert abs(float(np.corrcoef(images[:-1], images[1:])[0, 1])) < 0.05
    assert abs(float(np.corrcoef(np.arange(size), images)[0, 1])) < 0.05


def test_fixed_points_are_as_rare_as_in_a_random_permutation() -> None:
    fixed = [sum(image == place for place, image in enumerate(whole(50, make_key(k)))) for k in range(400)]
    assert abs(sum(fixed) / 400 - 1.0) < 0.25


def test_other_keys_give_unrelated_permutations() -> None:
    first, second = np.array(whole(2000, make_key(1))), np.array(whole(2000, make_key(2)))
    assert abs(float(np.corrcoef(first, second)[0, 1])) < 0.1


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=8))
def test_scalar_and_vector_hash_agree(values: list[int]) -> None:
    assert [int(x) for x in mix(np.array(values, np.uint64))] == [mix_int(value) for value in values]


def test_hash_is_splitmix64() -> None:
    # The published first outputs of splitmix64 from state 0 are the hashes of 0, 1·step, 2·step.
    assert mix_int(0) == 0xE220A8397B1DCDAF
    assert mix_int(0x9E3779B97F4A7C15) == 0x6E789E6AA1B965F4
    assert mix_int(0x9E3779B97F4A7C15 * 2 % 2**64) == 0x06C45D188009454F


def test_key_depends_on_the_order_of_its_parts() -> None:
    assert len({make_key(*parts) for parts in itertools.permutations((1, 2, 3))}) == 6
    assert make_key(1) != make_key(1, 0)
