from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.data.token_shards import read_shard, write_tokens
from torchrelay.data.formats.tok import Footer, Packs, encode_footer, footer_start, open_tok, parse_footer
from torchrelay.data.manifest import TOKEN_BYTES, TokenDtype
from torchrelay.store.base import Store


def test_tokens_ends_and_ids_are_read_back(store: Store) -> None:
    (entry,) = write_tokens(store, [[1, 2, 3], [4], [5, 6]])
    shard = read_shard(store, entry)
    assert shard.tokens.tolist() == [1, 2, 3, 999, 4, 999, 5, 6, 999]
    assert shard.ends.tolist() == [4, 6, 9]
    assert shard.ids is not None and shard.ids.tolist() == [0, 1, 2]
    assert shard.labels is None and shard.packs is None and not shard.continues


def test_the_stream_lies_at_the_start_of_the_file_in_little_endian(store: Store) -> None:
    (entry,) = write_tokens(store, [[1, 258]])
    assert store.get(f"f/{entry.key}")[:6] == bytes([1, 0, 2, 1, 999 % 256, 999 // 256])
    (entry,) = write_tokens(store, [[1, 70_000]], token_dtype="u32")
    assert store.get(f"f/{entry.key}")[4:8] == (70_000).to_bytes(4, "little")


def test_the_footer_is_read_without_the_tokens(store: Store) -> None:
    (entry,) = write_tokens(store, [[1, 2, 3], [4]], pack_length=10)
    tail = store.get(f"f/{entry.key}", start=footer_start(entry.tokens, "u16"))
    footer = parse_footer(tail)
    assert footer.ends.tolist() == [4, 6]
    assert footer.packs is not None and footer.packs.order.tolist() == [0, 1]


@pytest.mark.parametrize(
    "change", [{"samples": 2}, {"tokens": 3}, {"continues": True}, {"packs": 1}, {"token_dtype": "u32"}]
)
def test_a_shard_that_is_not_the_one_of_the_entry_is_refused(store: Store, change: dict[str, Any]) -> None:
    (entry,) = write_tokens(store, [[1, 2, 3]])
    data = store.get(f"f/{entry.key}")
    dtype: TokenDtype = change.pop("token_dtype", "u16")
    with pytest.raises((ValueError, KeyError)):
        open_tok(data, replace(entry, **change), dtype)


arrays = st.lists(st.integers(1, 2**40), max_size=5)


@given(
    tokens=st.integers(1, 100),
    ends=arrays,
    labelled=st.booleans(),
    packed=st.booleans(),
    continues=st.booleans(),
    dtype=st.sampled_from(["u16", "u32"]),
)
def test_a_footer_survives_being_written(
    tokens: int, ends: list[int], labelled: bool, packed: bool, continues: bool, dtype: TokenDtype
) -> None:
    count = len(ends)
    labels = np.arange(count, dtype=np.int32) if labelled else None
    order = np.arange(count, dtype=np.uint32)
    packs = Packs(order, order[:1] + np.uint32(1)) if packed else None
    ids = np.array([2**64 - 1 - number for number in range(count)], np.uint64)
    footer = Footer(tokens, dtype, np.array(ends, np.uint64), ids, labels, packs, continues)
    data = bytes(tokens * TOKEN_BYTES[dtype]) + encode_footer(footer)
    start = footer_start(tokens, dtype)
    assert start % 8 == 0
    found = parse_footer(data[start:])
    assert (found.ends.tolist(), found.ids.tolist()) == (ends, ids.tolist())
    assert (None if found.labels is None else found.labels.tolist()) == (
        None if labels is None else labels.tolist()
    )
    assert (found.packs is None) == (packs is None)
    if found.packs is not None and packs is not None:
        assert [part.tolist() for part in found.packs] == [part.tolist() for part in packs]
    assert (found.tokens, found.token_dtype, found.continues) == (tokens, dtype, continues)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda data: data[:5], "only 5 bytes"),
        (lambda data: data[:-1] + b"X", "it ends with"),
        (lambda data: data[-12:], "does not fit"),
        (lambda data: data[8:], "2 documents need 32 bytes of footer, there are 24"),
        (lambda data: data.replace(b'"format": 2', b'"format": 9'), "unknown format 9"),
    ],
)
def test_a_broken_footer_says_what_is_wrong(damage: Callable[[bytes], bytes], reason: str) -> None:
    pair = np.array([2, 4], np.uint64)
    data = encode_footer(Footer(4, "u16", pair, pair, None, None, False))
    with pytest.raises(ValueError, match=reason):
        parse_footer(damage(data))
