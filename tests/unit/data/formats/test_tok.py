from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchrelay.core.errors import DataError
from torchrelay.data.build.token_writer import ShardSettings, ShardWriter
from torchrelay.data.formats import tok as shards_module
from torchrelay.data.formats.tok import Footer, ShardSet, encode_footer, footer_start, parse_footer
from torchrelay.data.manifest import ShardEntry
from torchrelay.store.base import Store
from torchrelay.store.files import FileStore
from torchrelay.store.open import open_store


def write_shards(store: Store, documents: Sequence[Sequence[int]], *, shard_bytes: int = 40) -> ShardSet:
    settings = ShardSettings(token_dtype="u16", end_token=999, labelled=False, shard_bytes=shard_bytes)
    writer = ShardWriter(store, "f", settings)
    for document in documents:
        writer.append(np.array(document), len(document))
        writer.end_document(None)
    return ShardSet(store, "f", writer.close(), "u16")


@pytest.fixture(params=["file", "memory"])
def any_store(request: pytest.FixtureRequest, tmp_path: Path, store: Store) -> Store:
    return FileStore(tmp_path / "store") if request.param == "file" else store


def flip(store: Store, entry: ShardEntry, place: int) -> None:
    data = bytearray(store.get(f"f/{entry.key}"))
    data[place] ^= 1
    store.put(f"f/{entry.key}", data)


def test_tokens_and_ends_are_read_back(any_store: Store) -> None:
    shards = write_shards(any_store, [[1, 2, 3], [4], [5, 6]])
    shard = shards.shard(0)
    assert shard.tokens.tolist() == [1, 2, 3, 999, 4, 999, 5, 6, 999]
    assert shard.ends.tolist() == [4, 6, 9]
    assert shard.labels is None and not shard.continues
    assert shards.shard(0) is shard


def test_the_stream_lies_at_the_start_of_the_file_in_little_endian(any_store: Store) -> None:
    shards = write_shards(any_store, [[1, 258]])
    assert any_store.get(f"f/{shards.entries[0].key}")[:6] == bytes([1, 0, 2, 1, 999 % 256, 999 // 256])


def test_the_footer_is_read_without_the_tokens(any_store: Store) -> None:
    shards = write_shards(any_store, [[1, 2, 3], [4]])
    flip(any_store, shards.entries[0], 0)
    assert shards.footer(0).ends.tolist() == [4, 6]


@pytest.mark.parametrize("place", [0, 9, -1, -13])
def test_a_flipped_byte_is_found_at_the_first_open_and_the_shard_named(any_store: Store, place: int) -> None:
    shards = write_shards(any_store, [[1, 2, 3], [4]])
    entry = shards.entries[0]
    flip(any_store, entry, place)
    with pytest.raises(DataError) as caught:
        shards.shard(0)
    assert f"shard {entry.key} of {any_store.url}/f is damaged: its xxh3_128 is " in caught.value.message
    assert entry.xxh3_128 in caught.value.message
    assert "torchrelay data verify" in caught.value.hint


def test_a_shard_of_another_size_is_named_with_both_sizes(any_store: Store) -> None:
    shards = write_shards(any_store, [[1, 2, 3]])
    entry = shards.entries[0]
    any_store.put(f"f/{entry.key}", any_store.get(f"f/{entry.key}")[:-1])
    with pytest.raises(DataError, match=rf"it has {entry.bytes - 1} bytes, the manifest says {entry.bytes}"):
        shards.shard(0)


def test_a_missing_shard_is_named(any_store: Store) -> None:
    shards = write_shards(any_store, [[1, 2, 3]])
    any_store.delete(f"f/{shards.entries[0].key}")
    for read in (shards.shard, shards.footer):
        with pytest.raises(DataError, match=f"shard {shards.entries[0].key} of .* is missing"):
            read(0)


def test_an_emptied_file_is_named(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    shards = write_shards(store, [[1, 2, 3]])
    store.put(f"f/{shards.entries[0].key}", b"")
    with pytest.raises(DataError, match="it is empty, the manifest says"):
        shards.shard(0)


def test_an_open_shard_is_checked_once(any_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    shards = write_shards(any_store, [[number] * 15 for number in range(6)])
    monkeypatch.setattr(shards_module, "MOST_MAPPED", 2)
    first = [shards.shard(number).tokens.tolist() for number in range(len(shards))]
    monkeypatch.setattr(ShardSet, "_check", lambda *_: pytest.fail("checked again"))
    assert [shards.shard(number).tokens.tolist() for number in range(len(shards))] == first
    assert len(shards._open) <= 2


def test_the_longest_unused_file_is_unmapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards_module, "MOST_MAPPED", 2)
    shards = write_shards(FileStore(tmp_path), [[number] * 15 for number in range(3)])
    for number in (0, 1, 0, 2):
        shards.shard(number)
    assert list(shards._open) == [0, 2]


def test_a_shard_that_is_not_the_one_of_the_entry_is_refused(store: Store) -> None:
    shards = write_shards(store, [[1, 2, 3]])
    lying = ShardSet(store, "f", [shards.entries[0].__class__(**{**_fields(shards), "documents": 2})], "u16")
    with pytest.raises(DataError, match="its trailer tells"):
        lying.shard(0)


def _fields(shards: ShardSet) -> dict[str, object]:
    entry = shards.entries[0]
    return {name: getattr(entry, name) for name in entry.__slots__}


@given(
    tokens=st.integers(1, 100),
    ends=st.lists(st.integers(1, 2**40), max_size=5),
    labelled=st.booleans(),
    continues=st.booleans(),
    dtype=st.sampled_from(["u16", "u32"]),
)
def test_a_footer_survives_being_written(
    tokens: int, ends: list[int], labelled: bool, continues: bool, dtype: str
) -> None:
    labels = np.arange(len(ends), dtype=np.int32) if labelled else None
    footer = Footer(tokens, dtype, np.array(ends, np.uint64), labels, continues)
    token_bytes = 2 if dtype == "u16" else 4
    data = bytes(tokens * token_bytes) + encode_footer(footer)
    start = footer_start(tokens, token_bytes)
    assert start % 8 == 0
    found = parse_footer(data[start:])
    assert found.ends.tolist() == ends
    assert (found.labels is None) == (not labelled)
    assert (found.tokens, found.token_dtype, found.continues) == (tokens, dtype, continues)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda data: data[:5], "only 5 bytes"),
        (lambda data: data[:-1] + b"X", "it ends with"),
        (lambda data: data[-12:], "does not fit"),
        (lambda data: data[8:], "2 documents need 16 bytes of footer, there are 8"),
    ],
)
def test_a_broken_footer_says_what_is_wrong(damage: object, reason: str) -> None:
    data = encode_footer(Footer(4, "u16", np.array([2, 4], np.uint64), None, False))
    with pytest.raises(ValueError, match=reason):
        parse_footer(damage(data))


def test_stores_of_the_same_url_share_shards() -> None:
    shards = write_shards(open_store("memory://shared-shards"), [[1]])
    again = ShardSet(open_store("memory://shared-shards"), "f", shards.entries, "u16")
    assert again.shard(0).tokens.tolist() == [1, 999]
