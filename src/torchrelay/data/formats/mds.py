"""Shards of samples in the MDS layout, version 2, which mosaicml-streaming reads too.

u32             number of samples n
u32 [n + 1]     byte at which each sample begins; the last is the end of the samples
JSON            names, encodings and sizes of the columns
samples         u32 size of every column whose values differ in size, then the values in column order
ids             u64 [n]: hash by which each sample was put into its split   (only in our own shards)
last 12 bytes   u32 n, then the magic                                       (only in our own shards)

Samples are read in place: arrays are views of the shard. See `mds_encoding` for the values.
"""

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchrelay.core.errors import DataError
from torchrelay.data.formats.mds_encoding import (
    DAMAGE,
    Decode,
    encoding_of,
    parse_encoding,
)
from torchrelay.data.formats.sample import Sample, SampleShard
from torchrelay.data.manifest import Column, ShardEntry
from torchrelay.store.base import Buffer

MAGIC = b"RELAYMD1"
MOST_BYTES = 2**32 - 1
"""Where a sample may begin at most: offsets are u32."""
_VERSION = 2
_TAIL = struct.Struct("<I8s")
_WORD = 4


class _Field(NamedTuple):
    """How one column is found in a sample."""

    name: str
    size: int | None
    """Bytes, or None where the sample tells them."""
    decode: Decode | None
    """None where the column is not wanted."""


class MdsShard:
    """The samples of one shard. Thread-safe."""

    __slots__ = ("_data", "_fields", "_fixed", "_key", "_offsets", "_sizes")

    def __init__(self, data: memoryview, offsets: memoryview, fields: Sequence[_Field], key: str) -> None:
        """Made by `open_mds`; `offsets` are checked to ascend within `data`."""
        self._data = data
        self._offsets = offsets
        self._fields = [(field.name, field.size, field.decode) for field in fields]
        variable = sum(field.size is None for field in fields)
        self._sizes: Callable[[memoryview, int], tuple[int, ...]] = struct.Struct(f"<{variable}I").unpack_from
        self._fixed = _WORD * variable + sum(field.size or 0 for field in fields)
        self._key = key

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def sample(self, index: int) -> Sample:
        """See `SampleShard.sample`."""
        if not 0 <= index < len(self._offsets) - 1:
            raise IndexError(f"sample {index} of {len(self)}")
        try:
            return self._read(self._offsets[index], self._offsets[index + 1])
        except DAMAGE as error:
            raise DataError(
                f"sample {index} of shard {self._key} cannot be read: {error}",
                hint="torchrelay data verify lists all that is damaged",
            ) from error

    def _read(self, begin: int, end: int) -> Sample:
        data = self._data
        if end - begin < self._fixed:
            raise ValueError(f"it has {end - begin} bytes, its columns need {self._fixed}")
        sizes = self._sizes(data, begin)
        if self._fixed + sum(sizes) != end - begin:
            raise ValueError(f"it has {end - begin} bytes, its columns {self._fixed + sum(sizes)}")
        at = begin + _WORD * len(sizes)
        told = iter(sizes)
        sample: Sample = {}
        for name, size, decode in self._fields:
            stop = at + (next(told) if size is None else size)
            if decode is not None:
                sample[name] = decode(data, at, stop)
            at = stop
        return sample


def open_mds(data: memoryview, entry: ShardEntry, columns: Sequence[Column]) -> SampleShard:
    """The shard whose bytes are `data`; only `columns` of it are decoded.

    ValueError that says what does not fit the entry, the columns, or itself.
    """
    data = memoryview(data).toreadonly()
    offsets = _read_offsets(data)
    if len(offsets) - 1 != entry.samples:
        raise ValueError(f"it has {len(offsets) - 1:,} samples, the manifest says {entry.samples:,}")
    encodings = read_encodings(data[_header_bytes(len(offsets) - 1) : offsets[0]])
    wanted = {column.name: column for column in columns}
    lost = [name for name in wanted if name not in encodings]
    if lost:
        raise ValueError(f"it has no column {lost[0]!r}, only {', '.join(encodings)}")
    fields = [_field(name, found, wanted.get(name)) for name, found in encodings.items()]
    return MdsShard(data, offsets, fields, entry.key)


def read_encodings(header: memoryview) -> dict[str, tuple[str, int | None]]:
    """Encoding and size of every column by name, in stored order, from a shard's JSON; or ValueError."""
    config = json.loads(header.tobytes())
    if not isinstance(config, dict) or (config.get("format"), config.get("version")) != ("mds", _VERSION):
        raise ValueError(f"its header is not that of MDS version {_VERSION}")
    names, encodings, sizes = (config[f"column_{what}"] for what in ("names", "encodings", "sizes"))
    if not len(set(names)) == len(names) == len(encodings) == len(sizes):
        raise ValueError("its header lists as many names as encodings and sizes: it does not")
    return {str(name): (str(encodings[k]), sizes[k]) for k, name in enumerate(names)}


def column_of(name: str, encoding: str) -> Column:
    """The manifest's column of an MDS column; ValueError for one that is not read, such as `pkl`."""
    return parse_encoding(name, encoding).column


def _field(name: str, found: tuple[str, int | None], wanted: Column | None) -> _Field:
    encoding, size = found[0], found[1] or None
    if size is not None and (type(size) is not int or size < 0):
        raise ValueError(f"column {name!r} has the size {size!r}")
    if wanted is None:
        return _Field(name, size, None)
    parsed = parse_encoding(name, encoding)
    if not _fits(parsed.column, wanted):
        raise ValueError(f"its {_show(parsed.column)} is in the manifest {_show(wanted)}")
    if parsed.size != size:
        raise ValueError(f"column {name!r} of {encoding} has the size {size!r}")
    return _Field(name, parsed.size, parsed.decode)


def _fits(column: Column, wanted: Column) -> bool:
    """Whether the manifest may say `wanted` of a column: the same, or what several shards have in common."""
    is_file = wanted.dtype == "bytes" and column.dtype in ("jpeg", "png")
    return (is_file or column.dtype == wanted.dtype) and wanted.shape in (None, column.shape)


def _show(column: Column) -> str:
    return f"column {column.name!r} of {column.dtype} {'' if column.shape is None else column.shape}".rstrip()


def _header_bytes(samples: int) -> int:
    return _WORD * (samples + 2)


def _read_offsets(data: memoryview) -> memoryview:
    """The n + 1 offsets, ascending within the shard; ValueError otherwise."""
    if len(data) < _header_bytes(0):
        raise ValueError(f"{len(data)} bytes are no shard")
    samples = int.from_bytes(data[:_WORD], "little")
    header = _header_bytes(samples)
    if header > len(data):
        raise ValueError(f"{samples:,} samples need {header:,} bytes of header, there are {len(data):,}")
    offsets = np.frombuffer(data, "<u4", samples + 1, _WORD)
    if offsets[0] < header or offsets[-1] > len(data) or (offsets[1:] < offsets[:-1]).any():
        raise ValueError("its samples do not follow each other within the shard")
    return data[_WORD:header].cast("I")


class SampleEncoder:
    """Turns samples into bytes, for shards of these columns. Thread-safe, can be pickled."""

    def __init__(self, columns: Sequence[Column]) -> None:
        """ValueError when no shard holds such a column."""
        self.columns = tuple(columns)
        self._encodings = [encoding_of(column) for column in columns]
        variable = [place for place, encoding in enumerate(self._encodings) if encoding.size is None]
        self._variable = variable
        self._sizes = struct.Struct(f"<{len(variable)}I")

    def __reduce__(self) -> tuple[Any, ...]:
        return SampleEncoder, (self.columns,)

    @property
    def header(self) -> bytes:
        """The JSON of every shard, the same for the same columns."""
        config = {
            "column_encodings": [encoding.name for encoding in self._encodings],
            "column_names": [encoding.column.name for encoding in self._encodings],
            "column_sizes": [encoding.size for encoding in self._encodings],
            "compression": None,
            "format": "mds",
            "hashes": [],
            "size_limit": None,
            "version": _VERSION,
        }
        return json.dumps(config, sort_keys=True).encode()

    def encode(self, sample: Mapping[str, Any]) -> bytes:
        """One sample; DataError that names the column whose value does not fit."""
        return self.join(self.values(sample))

    def values(self, sample: Mapping[str, Any]) -> list[Buffer]:
        """The bytes of every value, in column order; see `encode`."""
        values: list[Buffer] = []
        for encoding in self._encodings:
            name = encoding.column.name
            try:
                values.append(encoding.encode(sample[name]))
            except DAMAGE as error:
                raise _misfit(encoding.column, sample, error) from error
        return values

    def join(self, values: Sequence[Buffer]) -> bytes:
        """A sample from the bytes of its values; DataError when one has 4 GiB or more."""
        try:
            return b"".join((self._sizes.pack(*(len(values[place]) for place in self._variable)), *values))
        except struct.error as error:
            raise DataError(f"a value of {max(map(len, values)):,} bytes is too large for a shard") from error


def encode_sample(columns: Sequence[Column], sample: Mapping[str, Any]) -> bytes:
    """One sample; see `SampleEncoder`, which is faster for many."""
    return SampleEncoder(columns).encode(sample)


def encode_head(header: bytes, sizes: Sequence[int]) -> bytes:
    """All bytes before the samples; `sizes` are theirs. ValueError when a shard cannot be so large."""
    first = _header_bytes(len(sizes)) + len(header)
    if first + sum(sizes) > MOST_BYTES:
        raise ValueError(f"a shard of {first + sum(sizes):,} bytes is too large; {MOST_BYTES:,} is the most")
    offsets = np.cumsum([first, *sizes], dtype=np.int64).astype("<u4")
    return b"".join((len(sizes).to_bytes(_WORD, "little"), offsets.tobytes(), header))


def encode_tail(ids: NDArray[np.uint64]) -> bytes:
    """All bytes after the samples."""
    return ids.astype("<u8").tobytes() + _TAIL.pack(len(ids), MAGIC)


def tail_start(entry: ShardEntry) -> int:
    """Byte at which the tail of a shard of our own begins."""
    return entry.bytes - 8 * entry.samples - _TAIL.size


def parse_tail(tail: Buffer, samples: int) -> NDArray[np.uint64] | None:
    """The ids in the bytes from `tail_start` on; None where the shard is not of our own. ValueError when
    it is, but of another number of samples.
    """
    view = memoryview(tail)
    if len(view) < _TAIL.size or view[-len(MAGIC) :] != MAGIC:
        return None
    told = _TAIL.unpack(view[-_TAIL.size :])[0]
    if told != samples or len(view) != 8 * samples + _TAIL.size:
        raise ValueError(f"its tail tells {told:,} samples, the manifest {samples:,}")
    return np.frombuffer(view, "<u8", samples)


def _misfit(column: Column, sample: Mapping[str, Any], error: Exception) -> DataError:
    if column.name not in sample:
        return DataError(f"there is no {column.name!r}, only {', '.join(sample) or 'nothing'}")
    return DataError(f"{_show(column)} cannot hold its value: {error}")
