from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.data.readings.support import Tokens, document, epochs, located
from torchrelay.data.readings.documents import Documents, LabelledDocuments, Pad
from torchrelay.data.readings.lengths import DocumentLengths
from torchrelay.data.readings.rows import IGNORED, padded_length

SHARDS = [[document(5 * n, 3 * n % 40) for n in range(20)], [document(n, 2 * n) for n in range(7)]]
PLACES = [(shard, index) for shard, documents in enumerate(SHARDS) for index in range(len(documents))]
places = st.lists(st.sampled_from([*PLACES, (-1, -1)]), min_size=1, max_size=8)
pads = st.sampled_from(["fixed", "longest"])


def open_documents(kind: Any, row_length: int, pad: Pad, *, labels: bool) -> Any:
    dataset = Tokens(SHARDS, labels=labels)
    shards = dataset.shards()
    return kind(shards, DocumentLengths(shards, dataset.content), row_length, pad)


@given(places=places, pad=pads, row_length=st.integers(1, 50))
def test_every_token_after_the_first_is_predicted(
    places: list[tuple[int, int]], pad: Pad, row_length: int
) -> None:
    reading = open_documents(Documents, row_length, pad, labels=False)
    where = located(*places)
    rows, lengths = reading.read(where, epochs(where)), reading.lengths(where)
    tokens, labels = rows.arrays["tokens"], rows.arrays["labels"]
    width = row_length if pad == "fixed" else padded_length(int(lengths.max()), row_length)
    assert tokens.shape == labels.shape == (len(places), width)
    for number, (shard, index) in enumerate(places):
        whole = [] if index < 0 else SHARDS[shard][index][: row_length + 1]
        n = max(0, len(whole) - 1)
        assert lengths[number] == n
        assert tokens[number, :n].tolist() == whole[:-1]
        assert labels[number, :n].tolist() == whole[1:]
        assert (labels[number, n:] == IGNORED).all() and (tokens[number, n:] == 0).all()
    assert rows.num_targets == rows.num_tokens == int(lengths.sum())


@given(places=places, pad=pads, row_length=st.integers(1, 50))
def test_labelled_documents_have_a_mask_and_a_class(
    places: list[tuple[int, int]], pad: Pad, row_length: int
) -> None:
    reading = open_documents(LabelledDocuments, row_length, pad, labels=True)
    where = located(*places)
    rows, lengths = reading.read(where, epochs(where)), reading.lengths(where)
    tokens, mask, labels = (rows.arrays[name] for name in ("tokens", "attention_mask", "labels"))
    width = row_length if pad == "fixed" else padded_length(int(lengths.max()), row_length)
    assert tokens.shape == mask.shape == (len(places), width)
    seen = 0
    for number, (shard, index) in enumerate(places):
        whole = [0] if index < 0 else SHARDS[shard][index][:row_length]
        assert tokens[number].tolist() == whole + [0] * (width - len(whole))
        assert mask[number].tolist() == [1] * len(whole) + [0] * (width - len(whole))
        assert labels[number] == (IGNORED if index < 0 else len(SHARDS[shard][index]))
        assert lengths[number] == len(whole)
        seen += len(whole) if index >= 0 else 0
    assert rows.num_targets == sum(index >= 0 for _, index in places)
    assert rows.num_tokens == seen


def test_padding_to_the_longest_never_changes_a_fixed_row() -> None:
    reading = open_documents(Documents, 30, "fixed", labels=False)
    where = located((0, 1))
    assert reading.read(where, epochs(where)).arrays["tokens"].shape == (1, 30)


@pytest.mark.parametrize("kind", [Documents, LabelledDocuments])
def test_arrays_are_int64(kind: Any) -> None:
    reading = open_documents(kind, 30, "longest", labels=kind is LabelledDocuments)
    where = located((0, 1), (1, 2))
    arrays = reading.read(where, epochs(where)).arrays
    assert {array.dtype for array in arrays.values()} == {np.dtype(np.int64)}
