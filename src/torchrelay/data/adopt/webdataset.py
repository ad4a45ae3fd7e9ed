"""WebDataset tars: which samples are in them, and where; see `formats.webdataset` for the names."""

from array import array
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from torchrelay.core.errors import DataError
from torchrelay.data.adopt.columns import check_names, merge_column
from torchrelay.data.adopt.plan import Found, Plan, Scanned, TokenFacts, Work
from torchrelay.data.adopt.stream import PieceReader, Stream
from torchrelay.data.adopt.tar import Member, walk_tar
from torchrelay.data.formats.unpack import stream_unpacker
from torchrelay.data.formats.webdataset import (
    NPY,
    NPY_HEAD_BYTES,
    extension_dtype,
    parse_npy_header,
    split_name,
    value_decoder,
    write_places,
)
from torchrelay.data.manifest import Column, Unpack

SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.zst")
_PICKLES = ("pkl", "pickle", "pyd", "pth", "pt")
"""What other libraries read as pickles."""
_CHECKED = ("int64", "str", "json")
"""Values that are decoded when they are adopted, so that training does not stop at one."""


class _Sample(NamedTuple):
    """The files of one key that follow each other."""

    key: str
    columns: dict[str, Column]
    places: dict[str, tuple[int, int]]
    """First byte and size by extension."""


class _Skipped:
    """Counts files that belong to no sample."""

    count = 0


def plan_webdataset(found: Found, facts: TokenFacts) -> Plan:
    """The shards; the first sample of the first one says which columns there are."""
    works = []
    first = next(key for keys in found.splits.values() for key in keys)
    columns = _first_columns(found, first)
    for split, keys in found.splits.items():
        for key in keys:
            works.append(Work(split, key, 0, found.sizes[key], lambda stream: scan_tar(stream, columns)))
    return Plan(format="webdataset", works=works)


def scan_tar(stream: Stream, columns: tuple[Column, ...]) -> Scanned:
    """Find all samples of a tar; ValueError that names the sample which lacks or repeats a file."""
    kind = _unpack_of(stream.key)
    reader = PieceReader(stream_unpacker(kind)(stream.pieces()))
    skipped, seen = _Skipped(), set[str]()
    merged = {column.name: column for column in columns}
    places = array("Q")
    for sample in _samples(reader, skipped):
        if sample.key in seen:
            raise ValueError(f"the key {sample.key!r} comes twice")
        seen.add(sample.key)
        try:
            check_names(sample.columns, merged)
            for name, column in sample.columns.items():
                merged[name] = merge_column(merged[name], column)
        except ValueError as error:
            raise ValueError(f"sample {sample.key!r}: {error}") from error
        for column in columns:
            places.extend(sample.places[column.name])
    return Scanned(
        samples=len(seen),
        unpack=kind,
        unpacked_bytes=reader.position if kind else 0,
        index=write_places([column.name for column in columns], np.frombuffer(places, np.uint64)),
        columns=tuple(merged.values()),
        skipped=skipped.count,
    )


def _first_columns(found: Found, key: str) -> tuple[Column, ...]:
    stream = Stream(found.store, key, 0, found.sizes[key], lambda count: None)
    try:
        pieces = stream_unpacker(_unpack_of(key))(stream.pieces())
        sample = next(_samples(PieceReader(pieces), _Skipped()), None)
    except ValueError as error:
        raise DataError(f"{found.store.url}/{key}: {error}") from error
    if sample is None:
        raise DataError(
            f"{found.store.url}/{key} holds no sample", hint="the files of a sample are called KEY.EXTENSION"
        )
    return tuple(sample.columns.values())


def _samples(reader: PieceReader, skipped: _Skipped) -> Iterator[_Sample]:
    current: _Sample | None = None
    for member in walk_tar(reader):
        split = split_name(member.name)
        if split is None:
            skipped.count += 1
            continue
        key, extension = split
        if current is None or current.key != key:
            if current is not None:
                yield current
            current = _Sample(key, {}, {})
        if extension in current.places:
            raise ValueError(f"sample {key!r} has two files {extension!r}")
        current.places[extension] = (member.start, member.size)
        current.columns[extension] = _column(reader, member, extension)
    if current is not None:
        yield current


def _column(reader: PieceReader, member: Member, name: str) -> Column:
    """The column of a file, with its value checked where that costs little."""
    dtype = extension_dtype(name)
    if name.rpartition(".")[2] in _PICKLES:
        raise ValueError(
            f"{member.name!r} at byte {member.start:,} is a pickle, which could run any code when it is "
            "read; write it again as npy, json or txt, or leave the column out of the tar files"
        )
    try:
        if dtype == NPY:
            header = parse_npy_header(reader.take(min(member.size, NPY_HEAD_BYTES)))
            size = header.start + header.dtype.itemsize * int(np.prod(header.shape, dtype=np.int64))
            if size != member.size:
                raise ValueError(f"an array of {size:,} bytes is not {member.size:,} bytes long")
            return Column(name=name, dtype=header.dtype.name, shape=header.shape)
        if dtype in _CHECKED:
            content = reader.take(member.size)
            if len(content) == member.size:  # else the tar is cut off, which the walk will say
                value_decoder(name)(memoryview(content))
    except ValueError as error:
        raise ValueError(f"{member.name!r} at byte {member.start:,}: {error}") from error
    return Column(name=name, dtype=dtype, shape=() if dtype == "int64" else None)


def _unpack_of(key: str) -> Unpack | None:
    if key.endswith(".zst"):
        return "zstd"
    return "gzip" if key.endswith((".gz", ".tgz")) else None
