from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchrelay.data.order.mixture import BLOCK, Mixture

weights = st.lists(
    st.floats(0.05, 50, allow_nan=False).map(lambda w: Fraction(repr(w))), min_size=1, max_size=6
)


@given(weights=weights, key=st.integers(0, 2**64 - 1), block=st.integers(0, 10**9))
@settings(deadline=None, max_examples=25)
def test_at_the_end_of_a_block_every_part_has_its_share_within_one(
    weights: list[Fraction], key: int, block: int
) -> None:
    mixture = Mixture(weights, key)
    place = block * mixture.block
    counts = mixture.counts(place)
    assert sum(counts) == place
    for count, weight in zip(counts, weights, strict=True):
        assert abs(count - place * weight / sum(weights)) < 1


@given(weights=weights, key=st.integers(0, 2**64 - 1), start=st.integers(0, 10**12))
@settings(deadline=None, max_examples=25)
def test_a_part_s_own_slots_follow_each_other_without_a_hole(
    weights: list[Fraction], key: int, start: int
) -> None:
    mixture = Mixture(weights, key)
    before, after = mixture.counts(start), mixture.counts(start + 700)
    parts, own = mixture.locate(np.arange(start, start + 700))
    for number in range(len(weights)):
        assert own[parts == number].tolist() == list(range(before[number], after[number]))


@given(weights=weights, key=st.integers(0, 2**64 - 1), data=st.data())
@settings(deadline=None, max_examples=15)
def test_any_places_in_any_company_are_the_same(
    weights: list[Fraction], key: int, data: st.DataObject
) -> None:
    mixture = Mixture(weights, key)
    places = data.draw(st.lists(st.integers(0, 3 * mixture.block), min_size=1, max_size=6))
    together = mixture.locate(np.array(places))
    for index, place in enumerate(places):
        alone = Mixture(weights, key).locate(np.array([place]))
        assert (together.parts[index], together.own[index]) == (alone.parts[0], alone.own[0])


def test_parts_come_mixed_and_not_in_runs() -> None:
    parts = Mixture([Fraction(1), Fraction(3)], 5).locate(np.arange(2 * BLOCK)).parts
    assert abs(float(parts[:BLOCK].mean()) - 0.75) == 0
    changes = np.flatnonzero(np.diff(parts[:BLOCK]))
    assert abs(len(changes) / BLOCK - 2 * 0.75 * 0.25) < 0.03
    hundreds = parts[: BLOCK // 64 * 64].reshape(-1, 64).mean(axis=1)
    assert float(hundreds.std()) < 0.07  # a random choice: sqrt(0.75 · 0.25 / 64) = 0.054
    assert parts[:BLOCK].tolist() != parts[BLOCK:].tolist()


def test_a_small_weight_has_a_place_in_every_block_of_a_larger_size() -> None:
    mixture = Mixture([Fraction(1), Fraction(1, 50_000)], 1)
    assert mixture.block == 16 * BLOCK
    parts = mixture.locate(np.arange(2 * mixture.block)).parts.reshape(2, -1)
    assert (parts == 1).sum(axis=1).tolist() in ([1, 1], [1, 2], [2, 1])


def test_weights_need_no_particular_sum() -> None:
    places = np.arange(1000)
    one, other = (Mixture([Fraction(text) for text in texts], 3) for texts in (("0.1", "0.9"), ("2", "18")))
    assert one.locate(places).parts.tolist() == other.locate(places).parts.tolist()
    assert Mixture([Fraction(4)], 3).locate(places).own.tolist() == places.tolist()


# A change here breaks the resume of every run on a mixture: it needs a new ORDER_VERSION.
PINNED = [
    (0, [2, 1, 2, 0, 2, 1, 2, 1, 0, 2], [0, 0, 1, 0, 2, 1, 3, 2, 1, 4]),
    (4090, [0, 2, 1, 0, 2, 2, 2, 2, 1, 2], [510, 2557, 1023, 511, 2558, 2559, 2560, 2561, 1024, 2562]),
    (10**12, [2, 2, 2, 2, 1], [625000000000, 625000000001, 625000000002, 625000000003, 250000000000]),
]


@pytest.mark.parametrize(("start", "parts", "own"), PINNED)
def test_the_mixture_is_the_one_that_runs_were_started_with(
    start: int, parts: list[int], own: list[int]
) -> None:
    found = Mixture([Fraction(1), Fraction(2), Fraction(5)], 12345).locate(
        np.arange(start, start + len(parts))
    )
    assert (found.parts.tolist(), found.own.tolist()) == (parts, own)
