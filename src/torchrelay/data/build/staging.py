"""One unit's result on a local disk, until all of it is in shards.

A staged unit is a folder that appears with one rename: `unit.json` and one file for each split,
which is deleted when its last byte is in a shard:

payload       items one after the other: tokens, or encoded samples
tables        sizes i64, text bytes i64, ids u64, labels i32, last u8: one of each for every row
tail          rows u64, payload bytes u64, hash of the payload u64, hash of the tables u64, magic
"""

import json
import os
import shutil
import struct
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from torchrelay.core.errors import DataError
from torchrelay.data.build.document import Intake
from torchrelay.data.build.unit import Unit
from torchrelay.store.base import Buffer

REPORT = "unit.json"
TEMPORARY = ".staging-"
_TAIL = struct.Struct("<QQQQ8s")
_MAGIC = b"RELAYSTG"
_ROW_BYTES = 8 + 8 + 8 + 4 + 1


class Row(NamedTuple):
    """A document or a sample, or a piece of one that goes on in the next row."""

    size: int
    """Items of payload: tokens with the end mark, or bytes of an encoded sample."""
    text_bytes: int
    document_id: int
    """Below 2**64; counts where the row is the last of its document."""
    label: int
    """Class, or 0 where nothing is labelled."""
    is_last: bool


class Table(NamedTuple):
    """The rows of a split, as columns."""

    sizes: NDArray[np.int64]
    text_bytes: NDArray[np.int64]
    ids: NDArray[np.uint64]
    labels: NDArray[np.int32]
    is_last: NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitReport:
    """What came of a unit."""

    id: str
    where: str
    size: int
    documents: int
    empty: int
    truncated: int
    problems: list[str]
    items: Mapping[str, int]
    """Items of payload by split; only splits that got any."""


class StageWriter:
    """Writes one staged unit. One thread."""

    def __init__(self, work: Path, number: int, unit: Unit) -> None:
        """`work` is the build's folder on a local disk."""
        self._unit = unit
        self._target = staged_folder(work, number, unit.id)
        self._folder = self._target.with_name(f"{self._target.name}{TEMPORARY}{uuid.uuid4().hex}")
        self._folder.mkdir(parents=True)
        self._splits: dict[str, _SplitWriter] = {}

    def append(self, split: str, payload: Buffer, row: Row) -> None:
        """One more row of a split."""
        writer = self._splits.get(split)
        if writer is None:
            writer = self._splits[split] = _SplitWriter(self._folder / split)
        writer.append(payload, row)

    def close(self, intake: Intake) -> UnitReport:
        """Make the staged unit visible."""
        report = UnitReport(
            id=self._unit.id,
            where=self._unit.where,
            size=self._unit.size,
            documents=intake.documents,
            empty=intake.empty,
            truncated=intake.truncated,
            problems=intake.problems,
            items={split: writer.close() for split, writer in self._splits.items()},
        )
        (self._folder / REPORT).write_text(json.dumps(asdict(report)))
        shutil.rmtree(self._target, ignore_errors=True)  # what was found there was not usable
        os.rename(self._folder, self._target)
        return report

    def discard(self) -> None:
        """Remove what was written so far."""
        for writer in self._splits.values():
            writer.release()
        shutil.rmtree(self._folder, ignore_errors=True)


class StagedSplit:
    """One split of a staged unit, for reading."""

    def __init__(self, path: Path) -> None:
        """DataError when the file is not whole."""
        self.path = path
        try:
            with path.open("rb") as file:
                self.table, self.payload_bytes, self._payload_hash = _read_tables(file)
        except (OSError, ValueError, struct.error) as error:
            raise DataError(
                f"the work file {path} cannot be used: {error}",
                hint=f"delete {path.parent.parent} and run the command again",
            ) from error

    def payload(self, start: int, stop: int) -> bytes:
        """Bytes [start, stop) of the payload."""
        with self.path.open("rb") as file:
            file.seek(start)
            return file.read(stop - start)

    def is_sound(self) -> bool:
        """Whether the payload is what was written; reads all of it."""
        digest = xxhash.xxh3_64()
        with self.path.open("rb") as file:
            left = self.payload_bytes
            while left and (chunk := file.read(min(left, 2**20))):
                digest.update(chunk)
                left -= len(chunk)
        return left == 0 and digest.intdigest() == self._payload_hash


def staged_folder(work: Path, number: int, unit_id: str) -> Path:
    """Where unit `number` is staged."""
    return work / f"{number:08d}-{unit_id[:16]}"


def find_staged(work: Path, number: int, unit_id: str) -> UnitReport | None:
    """The report of a unit that was staged completely by an earlier process; None where there is none."""
    folder = staged_folder(work, number, unit_id)
    try:
        report = UnitReport(**json.loads((folder / REPORT).read_bytes()))
        sound = all(StagedSplit(folder / split).is_sound() for split in report.items)
    except (OSError, ValueError, TypeError, DataError):
        return None
    return report if sound and report.id == unit_id else None


class _SplitWriter:
    def __init__(self, path: Path) -> None:
        self._file = path.open("wb", buffering=2**20)
        self._rows: list[Row] = []
        self._digest = xxhash.xxh3_64()
        self._bytes = 0

    def append(self, payload: Buffer, row: Row) -> None:
        self._file.write(payload)
        self._digest.update(payload)
        self._bytes += memoryview(payload).nbytes
        self._rows.append(row)

    def close(self) -> int:
        """Items of payload."""
        tables = _encode_tables(self._rows)
        tail = _TAIL.pack(
            len(self._rows),
            self._bytes,
            self._digest.intdigest(),
            xxhash.xxh3_64_intdigest(tables),
            _MAGIC,
        )
        self._file.write(tables + tail)
        self._file.close()
        return sum(row.size for row in self._rows)

    def release(self) -> None:
        self._file.close()


def _encode_tables(rows: list[Row]) -> bytes:
    columns = list(zip(*rows, strict=True))
    types = ("<i8", "<i8", "<u8", "<i4", "u1")
    return b"".join(np.array(column, kind).tobytes() for column, kind in zip(columns, types, strict=True))


def _read_tables(file: BinaryIO) -> tuple[Table, int, int]:
    """The tables, bytes of payload, and its hash; ValueError when they are not what was written."""
    end = file.seek(0, os.SEEK_END)
    file.seek(max(0, end - _TAIL.size))
    rows, payload_bytes, payload_hash, tables_hash, magic = _TAIL.unpack(file.read())
    if magic != _MAGIC or end != payload_bytes + rows * _ROW_BYTES + _TAIL.size:
        raise ValueError(f"it is not complete: {end:,} bytes")
    file.seek(payload_bytes)
    data = file.read(rows * _ROW_BYTES)
    if xxhash.xxh3_64_intdigest(data) != tables_hash:
        raise ValueError("its tables are damaged")
    return _decode_tables(data, rows), payload_bytes, payload_hash


def _decode_tables(data: bytes, rows: int) -> Table:
    kinds: tuple[Any, ...] = ("<i8", "<i8", "<u8", "<i4", "u1")
    columns = []
    offset = 0
    for kind in kinds:
        columns.append(np.frombuffer(data, kind, rows, offset))
        offset += columns[-1].nbytes
    return Table(columns[0], columns[1], columns[2], columns[3], columns[4].view(np.bool_))
