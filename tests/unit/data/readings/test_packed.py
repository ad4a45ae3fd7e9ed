from itertools import chain
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.data.readings.support import END, Document, Tokens, document, epochs, located
from torchrelay.data.readings.packed import BoundedWindows, PackedWindows, count_windows
from torchrelay.data.readings.rows import IGNORED

SHARDS = [[document(7 * n, 3 + 5 * n % 17) for n in range(9)], [document(n, 11) for n in range(5)]]


def read(reading: Any, *places: tuple[int, int]) -> Any:
    where = located(*places)
    return reading.read(where, epochs(where))


@given(tokens=st.integers(0, 10_000), length=st.integers(1, 500))
def test_windows_are_counted_as_they_fit(tokens: int, length: int) -> None:
    starts = range(0, max(0, tokens - length), length)
    assert count_windows(tokens, length) == len([s for s in starts if s + length + 1 <= tokens])


@pytest.mark.parametrize("shards", [SHARDS, SHARDS[:1]], ids=["several", "one"])
def test_samples_are_consecutive_windows_and_labels_come_one_later(shards: list[list[Document]]) -> None:
    dataset = Tokens(shards)
    places = [
        (shard, index)
        for shard, entry in enumerate(dataset.entries)
        for index in range(count_windows(entry.tokens, 16))
    ]
    rows = read(PackedWindows(dataset.shards(), 16), *places)
    for number, (shard, index) in enumerate(places):
        tokens = list(chain(*shards[shard]))
        assert rows.arrays["tokens"][number].tolist() == tokens[index * 16 : index * 16 + 16]
        assert rows.arrays["labels"][number].tolist() == tokens[index * 16 + 1 : index * 16 + 17]
    assert rows.num_targets == rows.num_tokens == 16 * len(places)
    assert all(array.dtype == np.int64 for array in rows.arrays.values())


@pytest.mark.parametrize("reading", [PackedWindows, BoundedWindows])
@pytest.mark.parametrize("shards", [SHARDS, SHARDS[:1]], ids=["several", "one"])
def test_a_place_without_a_sample_predicts_nothing_and_leaves_the_others(reading: Any, shards: Any) -> None:
    windows = reading(Tokens(shards).shards(), 16)
    rows, alone = read(windows, (0, 2), (-1, -1), (0, 0)), read(windows, (0, 2), (0, 0))
    assert (rows.arrays["labels"][1] == IGNORED).all()
    for name, array in alone.arrays.items():
        assert rows.arrays[name][[0, 2]].tolist() == array.tolist()
    assert (rows.num_targets, rows.num_tokens) == (alone.num_targets, alone.num_tokens)


documents = st.lists(st.integers(0, 30).map(lambda n: document(1, n)), min_size=1, max_size=20)


@given(documents=documents, length=st.integers(1, 40))
def test_bounded_windows_tell_documents_apart(documents: list[Document], length: int) -> None:
    dataset = Tokens([documents])
    count = count_windows(dataset.entries[0].tokens, length)
    if count == 0:
        return
    rows = read(BoundedWindows(dataset.shards(), length), *[(0, index) for index in range(count)])
    owner = [n for n, document in enumerate(documents) for _ in document]
    tokens = list(chain(*documents))
    predicted = 0
    for index in range(count):
        at = range(index * length, index * length + length)
        own = [owner[place] for place in at]
        got = {name: array[index].tolist() for name, array in rows.arrays.items()}
        assert got["tokens"] == [tokens[place] for place in at]
        assert got["documents"] == [own_document - own[0] for own_document in own]
        assert got["positions"] == [place - own.index(own[place]) for place in range(length)]
        labels = [tokens[p + 1] if owner[p + 1] == owner[p] else IGNORED for p in at]
        assert got["labels"] == labels
        predicted += sum(label != IGNORED for label in labels)
    assert (rows.num_targets, rows.num_tokens) == (predicted, count * length)


def test_an_end_mark_is_predicted_and_what_follows_it_is_not() -> None:
    rows = read(BoundedWindows(Tokens([[[1, 2, END], [3, 4, END]]]).shards(), 5), (0, 0))
    assert rows.arrays["tokens"].tolist() == [[1, 2, END, 3, 4]]
    assert rows.arrays["labels"].tolist() == [[2, END, IGNORED, 4, END]]
    assert rows.arrays["positions"].tolist() == [[0, 1, 2, 0, 1]]


def test_all_are_alike() -> None:
    for reading in (PackedWindows, BoundedWindows):
        assert reading(Tokens(SHARDS).shards(), 16).lengths(located((0, 0))) is None
