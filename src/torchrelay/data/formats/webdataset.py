"""WebDataset tars: a sample is the files of one key, a column is an extension.

The key of a file is its path up to the first dot of its name, its extension the rest in lower case:
`a/0001.seg.png` has the key `a/0001` and the extension `seg.png`. No tar is parsed for reading: the
index file of the shard (`index_file`) tells where the values lie, after unpacking.

header   {"format": "webdataset", "columns": [extension, …]}
numbers  u64 [samples, columns, 2]: first byte of the value in the tar, bytes of the value

A value is what its extension says: `jpg`, `jpeg` and `png` stay encoded, `cls` is a whole number in
digits, `txt` text, `json` what the JSON says, `npy` an array (never pickled objects), others bytes.
"""

import ast
import functools
import json
import posixpath
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchrelay.core.errors import DataError
from torchrelay.data.formats.index_file import parse_index, write_index
from torchrelay.data.formats.sample import Sample, Value
from torchrelay.data.manifest import ShardEntry

FORMAT = "webdataset"
NPY = "npy"
NPY_HEAD_BYTES = 2**16 + 12
"""Bytes at the start of an npy file that hold its header for certain."""

_NPY_MAGIC = b"\x93NUMPY"
_DTYPES = {
    "jpg": "jpeg", "jpeg": "jpeg", "png": "png",
    "cls": "int64", "cls2": "int64", "index": "int64",
    "txt": "str", "text": "str", "transcript": "str",
    "json": "json", "jsn": "json",
    "npy": NPY,
}  # fmt: skip


Decode = Callable[[memoryview], Value]


class NpyHeader(NamedTuple):
    """What an npy file tells of its array."""

    dtype: "np.dtype[Any]"
    fortran: bool
    shape: tuple[int, ...]
    start: int
    """Byte at which the numbers begin."""


def split_name(path: str) -> tuple[str, str] | None:
    """Key and extension of a file in a tar, or None where its name has no extension."""
    folder, name = posixpath.split(path)
    stem, dot, extension = name.partition(".")
    if not stem or not extension:
        return None
    return posixpath.join(folder, stem), extension.lower()


def extension_dtype(extension: str) -> str:
    """The dtype of a column of that name; `npy` where the file itself tells it."""
    return _DTYPES.get(extension.rpartition(".")[2], "bytes")


def value_decoder(extension: str) -> Decode:
    """What turns the bytes of a file of that extension into its value; ValueError when they are none."""
    return _DECODE[extension_dtype(extension)]


def decode_npy(data: memoryview) -> NDArray[Any]:
    """The array of an npy file as a view of its bytes; ValueError when it is damaged or pickled."""
    header = parse_npy_header(bytes(data[: _npy_start(data)]))
    count = int(np.prod(header.shape, dtype=np.int64))
    array = np.frombuffer(data, header.dtype, count, header.start)
    return array.reshape(header.shape, order="F" if header.fortran else "C")


@functools.lru_cache(maxsize=1024)
def parse_npy_header(head: bytes) -> NpyHeader:
    """The header in the first bytes of an npy file (`NPY_HEAD_BYTES` of them, or just all of it)."""
    start = _npy_start(memoryview(head))
    text = head[start - _npy_length(head) : start].decode("latin-1")
    try:
        tree = ast.literal_eval(text.strip())
        dtype = np.dtype(tree["descr"])
        header = NpyHeader(dtype, bool(tree["fortran_order"]), tuple(map(int, tree["shape"])), start)
    except (SyntaxError, KeyError, TypeError) as error:
        raise ValueError(f"the npy header {text[:80]!r} cannot be read") from error
    if dtype.kind not in "biuf":
        raise ValueError(f"the npy file holds {dtype}, not numbers; pickled objects are never read")
    return header


def write_places(columns: list[str], places: NDArray[np.uint64]) -> bytes:
    """The index file of a shard; `places` is [samples, columns, 2] in any shape."""
    return write_index({"format": FORMAT, "columns": columns}, places)


def open_webdataset(data: memoryview, entry: ShardEntry, index: bytes | None) -> "TarSamples":
    """The samples of a shard whose bytes are `data`; ValueError that says what does not fit its entry."""
    header, numbers = parse_index(index)
    columns = [str(name) for name in header["columns"]]
    if header["format"] != FORMAT or numbers.size != entry.samples * len(columns) * 2:
        raise ValueError(f"its index file is one of {header['format']} with {numbers.size} numbers")
    places = numbers.reshape(entry.samples, len(columns), 2)
    if entry.samples and int(places.sum(axis=2).max()) > len(data):
        raise ValueError(f"its index file reaches beyond its {len(data):,} bytes")
    return TarSamples(data, entry.key, columns, places)


class TarSamples:
    """See `SampleShard`."""

    def __init__(self, data: memoryview, key: str, columns: list[str], places: NDArray[np.uint64]) -> None:
        self._data = data
        self._key = key
        self._columns = [(name, value_decoder(name)) for name in columns]
        self._places = places

    def __len__(self) -> int:
        """See `SampleShard`."""
        return len(self._places)

    def sample(self, index: int) -> Sample:
        """See `SampleShard.sample`."""
        sample: Sample = {}
        for (name, decode), (start, size) in zip(self._columns, self._places[index].tolist(), strict=True):
            try:
                sample[name] = decode(self._data[start : start + size])
            except ValueError as error:
                raise DataError(f"{name!r} of sample {index} of shard {self._key}: {error}") from error
        return sample


def _decode_int(data: memoryview) -> int:
    text = bytes(data[:64])
    try:
        return int(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is not a whole number") from error


def _npy_length(head: bytes) -> int:
    return int(struct.unpack_from("<H" if head[6] == 1 else "<I", head, 8)[0])


def _npy_start(data: memoryview) -> int:
    """Byte at which the numbers begin."""
    if len(data) < 12 or data[:6] != _NPY_MAGIC:
        raise ValueError("it is not an npy file")
    head = bytes(data[:12])
    start = _npy_length(head) + (10 if head[6] == 1 else 12)
    if start > min(len(data), NPY_HEAD_BYTES):
        raise ValueError("its npy header is cut off")
    return start


_DECODE: dict[str, Decode] = {
    "jpeg": bytes,
    "png": bytes,
    "bytes": bytes,
    "int64": _decode_int,
    "str": lambda data: str(data, "utf-8"),
    "json": lambda data: json.loads(bytes(data)),
    NPY: decode_npy,
}
"""By what `extension_dtype` says."""
