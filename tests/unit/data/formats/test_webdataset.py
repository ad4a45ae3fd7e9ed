import io

import numpy as np
import pytest

from torchrelay.core.errors import DataError
from torchrelay.data.formats.index_file import write_index
from torchrelay.data.formats.webdataset import (
    decode_npy,
    extension_dtype,
    open_webdataset,
    split_name,
    write_places,
)
from torchrelay.data.manifest import ShardEntry


def make_entry(samples: int) -> ShardEntry:
    return ShardEntry(key="x.tar", bytes=9, sha256="", xxh3_128="", samples=samples)


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("a.jpg", ("a", "jpg")),
        ("a/b.c/d.seg.PNG", ("a/b.c/d", "seg.png")),
        ("./a.jpg", ("./a", "jpg")),
        ("README", None),
        (".hidden.jpg", None),
        ("a.", None),
    ],
)
def test_a_path_is_cut_at_the_first_dot_of_its_name(path: str, found: tuple[str, str] | None) -> None:
    assert split_name(path) == found


def test_the_last_part_of_an_extension_tells_the_type() -> None:
    names = ["jpg", "seg.png", "cls", "txt", "json", "x.npy", "mp4", "pickle"]
    assert [extension_dtype(name) for name in names] == [
        "jpeg", "png", "int64", "str", "json", "npy", "bytes", "bytes",
    ]  # fmt: skip


DATA = memoryview(b"12hello")
PLACES = np.array([[[0, 1], [2, 5]], [[1, 1], [7, 0]]], np.uint64)


def test_values_are_cut_out_where_the_index_says() -> None:
    shard = open_webdataset(DATA, make_entry(2), write_places(["cls", "txt"], PLACES))
    assert [shard.sample(index) for index in range(len(shard))] == [
        {"cls": 1, "txt": "hello"},
        {"cls": 2, "txt": ""},
    ]


@pytest.mark.parametrize(
    ("index", "samples", "message"),
    [
        (None, 2, "names no index file"),
        (write_places(["cls", "txt"], PLACES), 3, "its index file is one of webdataset with 8 numbers"),
        (write_index({"format": "other", "columns": ["cls", "txt"]}, PLACES), 2, "one of other"),
        (write_places(["cls", "txt"], PLACES + np.uint64(1)), 2, "reaches beyond its 7 bytes"),
    ],
)
def test_an_index_that_does_not_fit_is_refused(index: bytes | None, samples: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        open_webdataset(DATA, make_entry(samples), index)


def test_a_value_that_cannot_be_read_is_named() -> None:
    shard = open_webdataset(DATA, make_entry(2), write_places(["json", "cls"], PLACES))
    with pytest.raises(DataError, match=r"'cls' of sample 0 of shard x.tar: b'hello' is not a whole number"):
        shard.sample(0)


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
@pytest.mark.parametrize(
    "array", [np.arange(6.0).reshape(2, 3), np.array(5, np.int8), np.zeros((0, 3)), np.ones(2) > 0]
)
def test_an_npy_file_of_every_version_is_a_view(version: tuple[int, int], array: np.ndarray) -> None:
    file = io.BytesIO()
    np.lib.format.write_array(file, array.copy(order="F"), version=version, allow_pickle=False)
    data = file.getvalue()
    found = decode_npy(memoryview(data))
    assert np.array_equal(found, array) and (found.dtype, found.shape) == (array.dtype, array.shape)
    assert not found.flags.writeable
    assert array.size == 0 or np.shares_memory(found, np.frombuffer(data, np.uint8))
