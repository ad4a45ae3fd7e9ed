from collections.abc import Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from torchrelay.data.build.token_writer import ShardSettings, ShardWriter
from torchrelay.data.formats.tok import ShardSet
from torchrelay.data.manifest import ShardEntry
from torchrelay.store.base import Store
from torchrelay.store.open import open_store

END = 99


def write(
    store: Store,
    documents: Sequence[Sequence[int]],
    *,
    tokens: int = 10,
    part: int = 1000,
    labelled: bool = False,
) -> tuple[ShardEntry, ...]:
    """Shards of at most `tokens` tokens; every document is given in parts."""
    settings = ShardSettings(token_dtype="u16", end_token=END, labelled=labelled, shard_bytes=2 * tokens)
    writer = ShardWriter(store, "f", settings)
    assert writer.is_empty
    for number, document in enumerate(documents):
        for start in range(0, len(document), part):
            piece = np.array(document[start : start + part])
            writer.append(piece, 3 * piece.size)
        writer.end_document(number if labelled else None)
    assert writer.is_empty == (not documents)
    return writer.close()


def read(store: Store, entries: Sequence[ShardEntry]) -> list[list[int]]:
    shards = ShardSet(store, "f", entries, "u16")
    return [shards.shard(number).tokens.tolist() for number in range(len(entries))]


def test_documents_are_kept_whole_and_shards_small(store: Store) -> None:
    entries = write(store, [[1] * 4, [2] * 3, [3] * 2, [4] * 9])
    assert read(store, entries) == [[1] * 4 + [END] + [2] * 3 + [END], [3] * 2 + [END], [4] * 9 + [END]]
    assert [entry.documents for entry in entries] == [2, 1, 1]
    assert [entry.longest_document for entry in entries] == [5, 3, 10]
    assert not any(entry.continues for entry in entries)


def test_a_document_larger_than_a_shard_is_cut_and_the_rest_says_so(store: Store) -> None:
    entries = write(store, [[1], [2] * 23, [3]])
    assert read(store, entries) == [[1, END], [2] * 10, [2] * 10, [2] * 3 + [END] + [3, END]]
    assert [entry.continues for entry in entries] == [False, False, True, True]
    assert [entry.documents for entry in entries] == [1, 0, 0, 2]
    assert [entry.longest_document for entry in entries] == [2, 0, 0, 24]


def test_labels_go_with_their_documents(store: Store) -> None:
    entries = write(store, [[1] * 6, [2] * 6, [3]], labelled=True)
    shards = ShardSet(store, "f", entries, "u16")
    labels = [shards.shard(number).labels for number in range(len(entries))]
    assert [None if found is None else found.tolist() for found in labels] == [[0], [1, 2]]


def test_the_same_content_gives_the_same_key_and_is_written_anew(store: Store) -> None:
    (first,) = write(store, [[1, 2]])
    store.put(f"f/{first.key}", b"damaged")
    (second,) = write(store, [[1, 2]])
    assert first == second
    assert first.key == f"shards/{first.sha256[:2]}/{first.sha256}.tok"
    assert read(store, [second]) == [[1, 2, END]]


def test_another_cut_of_the_same_tokens_is_another_shard(store: Store) -> None:
    assert write(store, [[1, END, 2]])[0].key != write(store, [[1], [2]])[0].key


@given(
    documents=st.lists(st.lists(st.integers(0, 50), max_size=45), min_size=1, max_size=12),
    tokens=st.integers(2, 30),
    part=st.integers(1, 50),
)
@settings(max_examples=80, deadline=None)
def test_nothing_is_lost_whatever_the_sizes(documents: list[list[int]], tokens: int, part: int) -> None:
    store = open_store("memory://shard-writer-property")
    entries = write(store, documents, tokens=tokens, part=part)
    shards = read(store, entries)
    assert [t for shard in shards for t in shard] == [t for document in documents for t in [*document, END]]
    assert all(len(shard) <= tokens for shard in shards)
    assert [len(shard) for shard in shards] == [entry.tokens for entry in entries]
    assert sum(entry.documents for entry in entries) == len(documents)
    assert sum(entry.text_bytes for entry in entries) == 3 * sum(map(len, documents))
    assert max(entry.longest_document for entry in entries) == max(map(len, documents)) + 1
    assert any(entry.continues for entry in entries) == any(len(d) + 1 > tokens for d in documents)
    again = write(store, documents, tokens=tokens, part=7)
    assert [entry.key for entry in entries] == [entry.key for entry in again]
