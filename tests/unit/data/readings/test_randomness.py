from concurrent.futures import ThreadPoolExecutor
from itertools import product

import numpy as np

from torchrelay.data.readings.randomness import SampleRandomness


def draw(key: tuple[int, int, int]) -> tuple[int, ...]:
    seed, epoch, sample_id = key
    drawn: list[int] = SampleRandomness(seed).generator(epoch, sample_id).integers(0, 2**60, 3).tolist()
    return tuple(drawn)


def test_what_is_drawn_belongs_to_seed_epoch_and_sample() -> None:
    keys = list(product((0, 1, 2, 2**63 - 1), range(4), (0, 1, 7, 2**40)))
    drawn = {key: draw(key) for key in keys}
    assert len(set(drawn.values())) == len(keys)
    assert drawn == {key: draw(key) for key in reversed(keys)}


def test_what_was_drawn_before_and_in_other_threads_changes_nothing() -> None:
    randomness = SampleRandomness(5)

    def draw_after_others(sample_id: int) -> list[float]:
        randomness.generator(9, sample_id + 1).integers(0, 100, 7, dtype=np.int32)
        return randomness.generator(3, sample_id).random(5).tolist()

    expected = [SampleRandomness(5).generator(3, n).random(5).tolist() for n in range(200)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(draw_after_others, range(200))) == expected


def test_the_numbers_are_those_of_numpys_philox_with_the_same_key() -> None:
    key = np.array([(5 * 0x9E3779B97F4A7C15 + 2) % 2**64, 77], np.uint64)
    expected = np.random.Generator(np.random.Philox(key=key)).random(6).tolist()
    assert SampleRandomness(5).generator(2, 77).random(6).tolist() == expected


def test_neighbours_have_nothing_to_do_with_each_other() -> None:
    randomness = SampleRandomness(1)
    drawn = np.array([randomness.generator(epoch, n).random() for epoch in range(20) for n in range(100)])
    assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) < 0.08
    assert abs(drawn.mean() - 0.5) < 0.03
