import struct

import numpy as np
import pytest

from torchrelay.core.errors import DataError
from torchrelay.data.formats.index_file import write_index
from torchrelay.data.formats.litdata import (
    find_leaf,
    open_litdata,
    open_litdata_tokens,
    parse_array_head,
    write_leaves,
)
from torchrelay.data.manifest import ShardEntry


def make_entry(**fields: object) -> ShardEntry:
    return ShardEntry(key="x.bin", bytes=0, sha256="", xxh3_128="", **fields)


def make_chunk(items: list[bytes]) -> bytes:
    offsets = 4 * (len(items) + 2) + np.cumsum([0, *map(len, items)])
    return struct.pack("<I", len(items)) + offsets.astype("<u4").tobytes() + b"".join(items)


def make_item(*leaves: bytes) -> bytes:
    return b"".join([struct.pack(f"<{len(leaves)}I", *map(len, leaves)), *leaves])


def read(encoding: str, value: bytes) -> object:
    data = memoryview(make_chunk([make_item(value)]))
    return open_litdata(data, make_entry(samples=1), write_leaves([("x", encoding)])).sample(0)["x"]


@pytest.mark.parametrize(
    ("encoding", "value", "expected"),
    [
        ("int", struct.pack("<q", -7), -7),
        ("float", struct.pack("<d", 0.5), 0.5),
        ("bool", b"\0", False),
        ("str", "ü".encode(), "ü"),
        ("text", b"a", "a"),
        ("bytes", b"ab", b"ab"),
        ("json", b'{"a": [1]}', {"a": [1]}),
        ("jpeg", b"ab", b"ab"),
        ("image:png", b"ab", b"ab"),
        ("file:mp4", b"ab", b"ab"),
        ("jpeg_array", struct.pack("<3I", 2, 1, 2) + b"abc", [b"a", b"bc"]),
    ],
)
def test_every_encoding_has_its_value(encoding: str, value: bytes, expected: object) -> None:
    found = read(encoding, value)
    assert found == expected and type(found) is type(expected)


def test_a_raw_picture_is_an_array() -> None:
    picture = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    found = read("pil", struct.pack("<3I", 2, 2, 3) + b"RGB" + picture.tobytes())
    assert np.array_equal(found, picture)


def test_arrays_of_both_libraries_tell_their_shape_in_their_own_way() -> None:
    array = np.arange(6, dtype=np.int64).reshape(2, 3)
    for encoding, head in (
        ("tensor", struct.pack(">4I", 17, 2, 2, 3)),
        ("numpy", struct.pack("<4I", 3, 2, 2, 3)),
    ):
        found = read(encoding, head + array.tobytes())
        assert np.array_equal(found, array) and found.dtype == np.int64 and not found.flags.writeable


@pytest.mark.parametrize("encoding", ["pickle", "graph", "no_header_tensor:10", "no_header_numpy:14", "new"])
def test_what_is_not_read_is_refused_by_name(encoding: str) -> None:
    with pytest.raises(ValueError, match="are not read"):
        find_leaf(encoding)


@pytest.mark.parametrize("value", [b"", b"\1" + bytes(8), b"{"])
def test_nested_values_in_another_form_are_refused(value: bytes) -> None:
    with pytest.raises(DataError, match="sample 0 of shard x.bin"):
        read("json", value)


@pytest.mark.parametrize("data", [b"", b"\0" * 7, struct.pack(">2I", 17, 33), struct.pack(">2I", 17, 1)])
def test_a_damaged_head_of_an_array_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="an array of"):
        parse_array_head("tensor", memoryview(data))


@pytest.mark.parametrize(
    "item", [b"", make_item(b"12345678", b"x"), make_item(b"1234567"), struct.pack("<I", 9) + b"12345678"]
)
def test_a_damaged_item_is_named(item: bytes) -> None:
    data = memoryview(make_chunk([make_item(b"12345678"), item]))
    shard = open_litdata(data, make_entry(samples=2), write_leaves([("x", "int")]))
    assert shard.sample(0)
    with pytest.raises(DataError, match="sample 1 of shard x.bin"):
        shard.sample(1)


@pytest.mark.parametrize("damage", [lambda d: d[:-1], lambda d: d + b"x", lambda d: d[:4] + b"\xff" + d[5:]])
def test_offsets_that_do_not_fit_are_refused(damage: object) -> None:
    data = memoryview(damage(make_chunk([b"a", b"b"])))
    with pytest.raises(ValueError, match="its offsets do not fit"):
        open_litdata(data, make_entry(samples=2), write_leaves([("x", "bytes")]))


def test_an_index_of_another_format_is_refused() -> None:
    with pytest.raises(ValueError, match="one of megatron"):
        open_litdata(
            memoryview(b""),
            make_entry(samples=0),
            write_index({"format": "megatron"}, np.zeros(0, np.uint64)),
        )


def test_items_without_tokens_are_no_documents() -> None:
    items = [np.arange(count, dtype="<i8").tobytes() for count in (2, 0, 3)]
    data = memoryview(make_chunk(items))
    shard = open_litdata_tokens(data, make_entry(samples=2, tokens=5), "i64")
    assert (shard.tokens.tolist(), shard.ends.tolist()) == ([0, 1, 0, 1, 2], [2, 5])
    assert np.shares_memory(shard.tokens, np.frombuffer(data, np.uint8))
    with pytest.raises(ValueError, match="it holds 2 documents, the manifest says 3"):
        open_litdata_tokens(data, make_entry(samples=3, tokens=5), "i64")
