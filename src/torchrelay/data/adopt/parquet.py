"""Parquet files: their rows are samples. Each is decoded once, to find what is damaged or missing."""

from pathlib import Path
from typing import Any

from torchrelay.core.errors import DataError
from torchrelay.data.adopt.plan import Found, Plan, Scanned, TokenFacts, Work
from torchrelay.data.adopt.rows import RowScan
from torchrelay.data.adopt.stream import Stream
from torchrelay.data.formats.arrow_file import copy_batches
from torchrelay.data.formats.arrow_schema import keep_columns
from torchrelay.data.formats.unpack import import_extra

SUFFIXES = (".parquet",)
_MAGIC = b"PAR1"


def plan_parquet(found: Found, facts: TokenFacts) -> Plan:
    """The files; the schema of the first is that of all."""
    first = next(key for keys in found.splits.values() for key in keys)
    schema = _read_schema(found, first)
    try:
        keep_columns(schema)
    except ValueError as error:
        raise DataError(
            f"{found.store.url}/{first}: {error}", hint="leave the column out when the file is written"
        ) from error
    works = [
        Work(split, key, 0, found.sizes[key], lambda stream: scan_parquet(stream, schema, first))
        for split, keys in found.splits.items()
        for key in keys
    ]
    return Plan(format="parquet", works=works)


def scan_parquet(stream: Stream, schema: Any, first: str) -> Scanned:
    """Decode a whole file; ValueError when it is damaged, has another schema, or lacks a value."""
    pa = import_extra("pyarrow", "reading Parquet")
    parquet = import_extra("pyarrow.parquet", "reading Parquet")
    with stream.as_file() as path:
        try:
            _check_schema(parquet.read_schema(path), schema, first)
            return _scan_rows(pa, path)
        except (pa.ArrowException, OSError) as error:
            raise ValueError(f"it is damaged: {error}") from error


def _scan_rows(pa: Any, path: Path) -> Scanned:
    sink, rows = pa.MockOutputStream(), RowScan()
    for batch in copy_batches(sink, path):
        rows.feed(batch)
    return Scanned(samples=rows.count, unpack="arrow", unpacked_bytes=sink.size(), columns=rows.columns())


def _read_schema(found: Found, key: str) -> Any:
    """The schema of a file from its end alone."""
    pa = import_extra("pyarrow", "reading Parquet")
    parquet = import_extra("pyarrow.parquet", "reading Parquet")
    size = found.sizes[key]
    tail = found.store.get(key, start=max(0, size - 8))
    if len(tail) < 8 or tail[4:] != _MAGIC:
        raise DataError(
            f"{found.store.url}/{key} is cut off at byte {size:,}: it ends with {tail[4:]!r}, not {_MAGIC!r}"
        )
    length = int.from_bytes(tail[:4], "little") + 8
    footer = found.store.get(key, start=max(0, size - length))
    try:
        return parquet.read_schema(pa.BufferReader(_MAGIC + footer))
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{found.store.url}/{key} is damaged: {error}") from error


def _check_schema(schema: Any, expected: Any, first: str) -> None:
    """ValueError that names the column in which a file differs from the first."""
    here = {field.name: str(field.type) for field in schema}
    there = {field.name: str(field.type) for field in expected}
    for name in [*there, *here]:
        if here.get(name) != there.get(name):
            told = f"{name!r} is {here.get(name, 'not there')}, in {first} {there.get(name, 'not there')}"
            raise ValueError(f"it has another schema: {told}")
    if list(here) != list(there):
        raise ValueError(f"it has another schema: its columns are in another order than in {first}")
