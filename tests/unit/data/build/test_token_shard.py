from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.data.token_shards import read_shard, write_tokens
from torchrelay.store.base import Store
from torchrelay.store.open import open_store

END = 999


def tokens_of(store: Store, entries: tuple) -> list[list[int]]:
    return [read_shard(store, entry).tokens.tolist() for entry in entries]


def test_documents_are_kept_whole_and_shards_small(store: Store) -> None:
    entries = write_tokens(store, [[1] * 4, [2] * 3, [3] * 2, [4] * 9], shard_bytes=20)
    assert tokens_of(store, entries) == [
        [1] * 4 + [END] + [2] * 3 + [END],
        [3] * 2 + [END],
        [4] * 9 + [END],
    ]
    assert [entry.samples for entry in entries] == [2, 1, 1]
    assert [entry.longest for entry in entries] == [5, 3, 10]
    assert [entry.text_bytes for entry in entries] == [21, 6, 27]
    assert not any(entry.continues for entry in entries)
    assert [read_shard(store, entry).ids.tolist() for entry in entries] == [[0, 1], [2], [3]]  # type: ignore[union-attr]


def test_a_document_larger_than_a_shard_is_cut_and_the_rest_says_so(store: Store) -> None:
    entries = write_tokens(store, [[1], [2] * 23, [3]], shard_bytes=20)
    assert tokens_of(store, entries) == [[1, END], [2] * 10, [2] * 10, [2] * 3 + [END, 3, END]]
    assert [entry.continues for entry in entries] == [False, False, True, True]
    assert [entry.samples for entry in entries] == [1, 0, 0, 2]
    assert [entry.longest for entry in entries] == [2, 0, 0, 24]
    assert sum(entry.text_bytes for entry in entries) == 3 * 25


def test_labels_go_with_their_documents(store: Store) -> None:
    entries = write_tokens(store, [[1] * 6, [2] * 6, [3]], shard_bytes=20, labels=[5, 1, 2])
    found = [read_shard(store, entry).labels for entry in entries]
    assert [None if labels is None else labels.tolist() for labels in found] == [[5], [1, 2]]
    assert read_shard(store, write_tokens(store, [[1]])[0]).labels is None


def test_the_same_content_gives_the_same_key_and_is_written_anew(store: Store) -> None:
    (first,) = write_tokens(store, [[1, 2]])
    store.put(f"f/{first.key}", b"damaged")
    (second,) = write_tokens(store, [[1, 2]])
    assert first == second
    assert first.key == f"shards/{first.sha256[:2]}/{first.sha256}.tok"
    assert tokens_of(store, (second,)) == [[1, 2, END]]


def test_another_cut_of_the_same_tokens_is_another_shard(store: Store) -> None:
    assert write_tokens(store, [[1, END, 2]])[0].key != write_tokens(store, [[1], [2]])[0].key


def test_packs_are_planned_for_every_shard(store: Store) -> None:
    entries = write_tokens(store, [[1] * 5, [2] * 3, [3] * 2, [4] * 1], shard_bytes=24, pack_length=8)
    shards = [read_shard(store, entry) for entry in entries]
    assert [entry.packs for entry in entries] == [2, 1]
    assert [shard.packs.order.tolist() for shard in shards if shard.packs] == [[0, 1], [0, 1]]
    assert [shard.packs.ends.tolist() for shard in shards if shard.packs] == [[1, 2], [2]]


@given(
    documents=st.lists(st.lists(st.integers(0, 50), max_size=45), min_size=1, max_size=12),
    tokens=st.integers(2, 30),
)
@settings(max_examples=80, deadline=None)
def test_nothing_is_lost_whatever_the_sizes(documents: list[list[int]], tokens: int) -> None:
    store = open_store("memory://token-shard-property")
    entries = write_tokens(store, documents, shard_bytes=2 * tokens)
    shards = tokens_of(store, entries)
    assert [t for shard in shards for t in shard] == [t for document in documents for t in [*document, END]]
    assert all(len(shard) <= tokens for shard in shards)
    assert [len(shard) for shard in shards] == [entry.tokens for entry in entries]
    assert sum(entry.samples for entry in entries) == len(documents)
    assert sum(entry.text_bytes for entry in entries) == 3 * sum(map(len, documents))
    assert max(entry.longest for entry in entries) == max(map(len, documents)) + 1
    assert any(entry.continues for entry in entries) == any(len(d) + 1 > tokens for d in documents)
