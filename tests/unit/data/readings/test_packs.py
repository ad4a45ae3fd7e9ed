from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.data.readings.support import Tokens, document, epochs, located
from torchrelay.core.errors import DataError
from torchrelay.data.readings.packs import PlannedPacks
from torchrelay.data.readings.rows import IGNORED


def read(reading: Any, *places: tuple[int, int]) -> Any:
    where = located(*places)
    return reading.read(where, epochs(where))


@st.composite
def planned(draw: st.DrawFn) -> Tokens:
    """Documents in any order, put together by any plan."""
    shards, packs = [], []
    for _ in range(draw(st.integers(1, 3))):
        count = draw(st.integers(1, 8))
        shards.append([document(draw(st.integers(0, 200)), draw(st.integers(0, 9))) for _ in range(count)])
        order = draw(st.permutations(range(count)))
        cuts = sorted(draw(st.sets(st.integers(1, count), max_size=count)) | {count})
        packs.append([order[a:b] for a, b in zip([0, *cuts], cuts, strict=False)])
    return Tokens(shards, packs=packs, pack_length=80)


@given(planned())
def test_a_row_holds_the_documents_of_its_pack_apart(dataset: Tokens) -> None:
    reading, shards = PlannedPacks(dataset.shards(), 79), dataset.shards()
    for number, entry in enumerate(dataset.entries):
        order, ends = shards.shard(number).packs or ([], [])
        rows = read(reading, *[(number, index) for index in range(entry.packs)])
        for index in range(entry.packs):
            start = int(ends[index - 1]) if index else 0
            members = [dataset.documents[number][d] for d in order[start : int(ends[index])].tolist()]
            members = [member for member in members if len(member) > 1]
            got = {name: array[index] for name, array in rows.arrays.items()}
            tokens = [token for member in members for token in member[:-1]]
            size = len(tokens)
            assert got["tokens"][:size].tolist() == tokens
            assert got["labels"][:size].tolist() == [token for member in members for token in member[1:]]
            assert got["positions"][:size].tolist() == [p for m in members for p in range(len(m) - 1)]
            assert got["documents"][:size].tolist() == [n for n, m in enumerate(members) for _ in m[1:]]
            assert (got["labels"][size:] == IGNORED).all()
            assert not set(got["documents"][size:]) & set(got["documents"][:size])
        assert rows.num_targets == rows.num_tokens == int((rows.arrays["labels"] != IGNORED).sum())
        assert all(array.shape == (entry.packs, 79) for array in rows.arrays.values())


def test_a_place_without_a_sample_predicts_nothing() -> None:
    dataset = Tokens([[document(0, 3), document(9, 4)]], packs=[[[1], [0]]], pack_length=8)
    rows = read(PlannedPacks(dataset.shards(), 8), (-1, -1), (0, 0))
    assert (rows.arrays["labels"][0] == IGNORED).all()
    assert rows.arrays["tokens"][1, :4].tolist() == [9, 10, 11, 12]
    assert rows.num_targets == 4


def test_a_pack_that_does_not_fit_is_named() -> None:
    dataset = Tokens([[document(0, 6), document(9, 4)]], packs=[[[0, 1]]], pack_length=8)
    with pytest.raises(DataError, match="pack 0 of shard shards/0.tok has more than the 9 positions"):
        read(PlannedPacks(dataset.shards(), 9), (0, 0))
    assert read(PlannedPacks(dataset.shards(), 10), (0, 0)).num_targets == 10


def test_a_shard_without_a_plan_is_named() -> None:
    with pytest.raises(DataError, match="shard shards/0.tok has no packs"):
        read(PlannedPacks(Tokens([[document(0, 6)]]).shards(), 9), (0, 0))


def test_arrays_are_int64() -> None:
    dataset = Tokens([[document(0, 3)]], packs=[[[0]]], pack_length=8)
    arrays = read(PlannedPacks(dataset.shards(), 8), (0, 0)).arrays
    assert {array.dtype for array in arrays.values()} == {np.dtype(np.int64)}
