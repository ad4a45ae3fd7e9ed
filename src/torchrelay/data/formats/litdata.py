"""LitData chunks: samples of leaves, or tokens.

u32 [1]          number of items
u32 [items + 1]  byte at which each item begins, and the end
items            of samples: u32 [leaves] bytes of each leaf, then the leaves; of tokens: the tokens

Samples that are plain rows may stand in it as an Arrow file instead, its u32 length and a magic at the
end; the items are then empty.

Which encoding a leaf has does not stand in the chunk: the shards of a dataset share an index file
(`index_file`) that tells it, with the name of every column:

header   {"format": "litdata", "leaves": [[name, encoding], …]}
numbers  none

A value of the encoding `pickle` is never read.
"""

import json
import struct
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchrelay.core.errors import DataError
from torchrelay.data.formats.index_file import parse_index, write_index
from torchrelay.data.formats.mds_encoding import DAMAGE, parse_encoding
from torchrelay.data.formats.sample import Sample, SampleShard, Value
from torchrelay.data.formats.tok import TokenShard, numpy_type
from torchrelay.data.manifest import ShardEntry, TokenDtype

FORMAT = "litdata"
TENSOR_DTYPES = {
    0: "float32", 1: "float32", 2: "float64", 3: "float64", 8: "float16", 9: "float16",
    11: "uint8", 12: "int8", 13: "int16", 14: "int16", 15: "int32", 16: "int32",
    17: "int64", 18: "int64", 19: "bool", 20: "uint16",
}  # fmt: skip
"""How the format numbers the types of tensors; complex numbers and bfloat16 have none in numpy here."""
NUMPY_DTYPES = {
    0: "int8", 1: "int16", 2: "int32", 3: "int64", 4: "uint8", 5: "uint16", 6: "uint32", 7: "uint64",
    8: "float16", 9: "float32", 10: "float64", 13: "bool",
}  # fmt: skip
"""How the format numbers the types of numpy arrays."""

ROWS_MAGIC = b"LDARW01\0"
ROWS_TAIL_BYTES = 12
"""Length and magic behind the Arrow file of a chunk of rows."""

_OPAQUE = ("bytes", "file", "image", "video", "audio", "nifti", "mesh", "pdf", "tifffile")


class Leaf(NamedTuple):
    """What an encoding stands for."""

    dtype: str | None
    """Of the column; None where every value tells its own."""
    shape: tuple[int, ...] | None
    decode: Callable[[memoryview], Value]
    """ValueError when the bytes are no such value."""


class ArrayHead(NamedTuple):
    """What stands before the numbers of an array of several dimensions."""

    dtype: str
    shape: tuple[int, ...]
    start: int


def find_leaf(encoding: str) -> Leaf:
    """The leaf of an encoding as the index.json names it; ValueError when it is not read here."""
    name, _, detail = encoding.partition(":")
    simple = _LEAVES.get(name)
    if simple is not None:
        return simple
    if name == "image" and detail in ("jpg", "jpeg", "png"):
        return Leaf("png" if detail == "png" else "jpeg", None, bytes)
    if name in _OPAQUE:
        return Leaf("bytes", None, bytes)
    if name in ("no_header_tensor", "no_header_numpy"):
        table = TENSOR_DTYPES if name == "no_header_tensor" else NUMPY_DTYPES
        dtype = _array_dtype(table, int(detail))
        return Leaf(dtype, None, lambda data: np.frombuffer(data, dtype))
    raise ValueError(f"values of the encoding {encoding!r} are not read")


def parse_array_head(encoding: str, data: memoryview) -> ArrayHead:
    """The head of a `tensor` or `numpy` leaf; ValueError when it is damaged."""
    order, table = (">", TENSOR_DTYPES) if encoding == "tensor" else ("<", NUMPY_DTYPES)
    if len(data) < 8:
        raise ValueError(f"an array of {len(data)} bytes is cut off")
    number, rank = struct.unpack_from(f"{order}II", data)
    if rank > 32 or len(data) < 8 + 4 * rank:
        raise ValueError(f"an array of {rank} dimensions in {len(data)} bytes is damaged")
    shape = struct.unpack_from(f"{order}{rank}I", data, 8)
    return ArrayHead(_array_dtype(table, number), shape, 8 + 4 * rank)


def write_leaves(leaves: list[tuple[str, str]]) -> bytes:
    """The index file that the shards of a dataset share: name and encoding of every leaf."""
    return write_index({"format": FORMAT, "leaves": leaves}, np.empty(0, np.uint64))


def find_rows(tail: bytes, size: int) -> slice | None:
    """Where the Arrow file lies in a chunk of `size` bytes that ends with `tail`, or None."""
    if tail[-8:] != ROWS_MAGIC or len(tail) < ROWS_TAIL_BYTES:
        return None
    stop = size - ROWS_TAIL_BYTES
    return slice(stop - int.from_bytes(tail[-12:-8], "little"), stop)


def open_litdata(data: memoryview, entry: ShardEntry, index: bytes | None) -> SampleShard:
    """The samples of a chunk whose bytes are `data`; ValueError that says what does not fit its entry."""
    rows = find_rows(bytes(data[-ROWS_TAIL_BYTES:]), len(data))
    if rows is not None:
        from torchrelay.data.formats.arrow import ArrowRows, read_batches

        return ArrowRows(read_batches(data[rows]))
    header = parse_index(index).header
    if header["format"] != FORMAT:
        raise ValueError(f"its index file is one of {header['format']}")
    offsets = _item_offsets(data, entry)
    leaves = [(str(name), find_leaf(str(encoding))) for name, encoding in header["leaves"]]
    return LeafSamples(data, entry.key, leaves, offsets)


def open_litdata_tokens(data: memoryview, entry: ShardEntry, dtype: TokenDtype) -> TokenShard:
    """The tokens of a chunk; every item is a document. ValueError as `open_litdata`."""
    offsets = _item_offsets(data, entry)
    tokens = np.frombuffer(data, numpy_type(dtype), entry.tokens, int(offsets[0]))
    ends = (offsets[1:].astype(np.uint64) - np.uint64(offsets[0])) // np.uint64(tokens.itemsize)
    ends = ends[np.diff(ends, prepend=np.uint64(0)) > 0]  # items without a token are no documents
    if ends.size != entry.samples or int(ends[-1]) != entry.tokens:
        raise ValueError(f"it holds {ends.size:,} documents, the manifest says {entry.samples:,}")
    return TokenShard(tokens, ends, None, None, None, entry.continues)


class LeafSamples:
    """See `SampleShard`."""

    def __init__(
        self, data: memoryview, key: str, leaves: list[tuple[str, Leaf]], offsets: NDArray[np.uint32]
    ) -> None:
        self._data = data
        self._key = key
        self._names = [name for name, _ in leaves]
        self._decoders = [leaf.decode for _, leaf in leaves]
        self._offsets = offsets
        self._sizes = struct.Struct(f"<{len(leaves)}I")

    def __len__(self) -> int:
        """See `SampleShard`."""
        return len(self._offsets) - 1

    def sample(self, index: int) -> Sample:
        """See `SampleShard.sample`."""
        start, stop = self._offsets[index : index + 2].tolist()
        sample: Sample = {}
        try:
            sizes = self._sizes.unpack_from(self._data, start)
            place = start + self._sizes.size
            for name, decode, size in zip(self._names, self._decoders, sizes, strict=True):
                sample[name] = decode(self._data[place : place + size])
                place += size
        except DAMAGE as error:
            raise DataError(f"sample {index} of shard {self._key} is damaged: {error}") from error
        if place != stop:
            raise DataError(
                f"sample {index} of shard {self._key} has {place - start} bytes of {stop - start}"
            )
        return sample


def _item_offsets(data: memoryview, entry: ShardEntry) -> NDArray[np.uint32]:
    count = int(np.frombuffer(data, "<u4", 1)[0])
    offsets = np.frombuffer(data, "<u4", count + 1, 4)
    if (
        int(offsets[0]) != 4 * (count + 2)
        or int(offsets[-1]) != len(data)
        or (offsets[1:] < offsets[:-1]).any()
    ):
        raise ValueError(f"its offsets do not fit its {len(data):,} bytes")
    return offsets


def _array_dtype(table: dict[int, str], number: int) -> str:
    dtype = table.get(number)
    if dtype is None:
        raise ValueError(f"arrays of the type number {number} are not read")
    return dtype


def _decode_array(encoding: str) -> Callable[[memoryview], Value]:
    def decode(data: memoryview) -> Value:
        head = parse_array_head(encoding, data)
        return np.frombuffer(data[head.start :], head.dtype).reshape(head.shape)

    return decode


def _as_in_mds(encoding: str) -> Leaf:
    """A leaf that lies as in an MDS shard."""
    found = parse_encoding(encoding, encoding)
    return Leaf(found.column.dtype, None, lambda data: found.decode(data, 0, len(data)))


def _decode_json(data: memoryview) -> Value:
    """JSON as text; newer versions also write a binary form, whose first byte is no printable one."""
    if not data or data[0] <= 0x20:
        raise ValueError("nested values in the library's own binary form are not read")
    value: Value = json.loads(bytes(data))
    return value


_LEAVES = {
    "int": Leaf("int64", (), lambda data: int(struct.unpack("<q", data)[0])),
    "float": Leaf("float64", (), lambda data: float(struct.unpack("<d", data)[0])),
    "bool": Leaf("bool", (), lambda data: data[0] != 0),
    "str": Leaf("str", None, lambda data: str(data, "utf-8")),
    "text": Leaf("str", None, lambda data: str(data, "utf-8")),
    "json": Leaf("json", None, _decode_json),
    "jpeg": Leaf("jpeg", None, bytes),
    "pil": _as_in_mds("pil"),
    "jpeg_array": _as_in_mds("jpeg_array"),
    "tensor": Leaf(None, None, _decode_array("tensor")),
    "numpy": Leaf(None, None, _decode_array("numpy")),
}
"""The encodings that are always the same type."""
