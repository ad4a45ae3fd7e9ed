"""Parquet and Arrow: a row is a document. Parquet is cut by row group, Arrow by record batch."""

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from torchrelay.core.errors import DataError
from torchrelay.data.build.division import Division, Piece, cut_document
from torchrelay.data.build.document import Fields, Intake
from torchrelay.data.build.files import Stamp, hash_parts, open_file

Layout = Literal["parquet", "file", "stream"]
"""parquet; Arrow IPC as a file with a footer, or as a stream without one."""
_ROWS = 1000
_MAGIC = b"ARROW1"


@dataclass(frozen=True, slots=True)
class TableRange:
    """Some row groups or record batches of a file."""

    file: Stamp
    layout: Layout
    groups: tuple[int, ...]
    """Their numbers, or the bytes of a stream at which their messages begin; empty: all."""
    first: int
    """For errors: the row before the first one (Parquet), or the number of the first record batch."""
    size: int
    """Bytes of input, about."""
    fields: Fields
    given: str | None

    @property
    def id(self) -> str:
        """See `Unit`."""
        return hash_parts("table", self.file, self.layout, self.groups, self.fields, self.given)

    @property
    def where(self) -> str:
        """See `Unit`."""
        what = "row groups" if self.layout == "parquet" else "record batches"
        return f"{self.file.path} ({len(self.groups) or 'all'} {what})"

    def prepared(self) -> "TableRange":
        """See `Unit`."""
        return self

    def pieces(self, division: Division, intake: Intake) -> Iterator[Piece]:
        """See `Unit`."""
        open_file(self.file).close()  # unchanged since the build began
        try:
            for place, batch in self._batches():
                yield from self._documents(place, batch, division, intake)
        except DataError as error:
            intake.refuse(error)

    def _batches(self) -> Iterator[tuple[str, Any]]:
        """Record batches, each with what stands before the number of a row in errors."""
        arrow = load_arrow()
        try:
            if self.layout == "parquet":
                yield from _read_parquet(self)
            else:
                yield from _read_arrow(self)
        except (arrow.ArrowException, OSError) as error:
            raise _unreadable(self.file, error) from error

    def _documents(self, place: str, batch: Any, division: Division, intake: Intake) -> Iterator[Piece]:
        for number, record in enumerate(self._records(batch), start=1):
            where = f"{self.file.path}: {_count_row(place, number)}"
            try:
                document = self.fields.document(record, where)
            except DataError as error:
                intake.refuse(error)
                continue
            yield from cut_document(document._replace(split=document.split or self.given), division, intake)

    def _records(self, batch: Any) -> Iterator[dict[str, Any]]:
        check_schema(batch.schema, self.fields, self.file.path)
        for start in range(0, batch.num_rows, _ROWS):
            columns = batch.slice(start, _ROWS).select(self.fields.names()).to_pydict()
            for values in zip(*columns.values(), strict=True):
                yield dict(zip(columns, values, strict=True))


def check_schema(schema: Any, fields: Fields, path: str) -> None:
    """DataError that names the file when a column is missing or the text column holds no text."""
    missing = [name for name in fields.names() if name not in schema.names]
    if missing:
        raise DataError(
            f"{path}: there is no column {missing[0]!r}",
            hint=f"columns there: {', '.join(schema.names) or 'none'}",
        )
    found = str(schema.field(fields.text).type)
    if not any(word in found for word in ("string", "binary", "null")):
        raise DataError(f"{path}: column {fields.text!r} holds {found}, not text")


def cut_parquet(file: Stamp, fields: Fields, given: str | None, unit_bytes: int) -> Iterator[TableRange]:
    """The units of one Parquet file; only its footer is read."""
    arrow, parquet = load_arrow(), _load("pyarrow.parquet")
    try:
        metadata = parquet.read_metadata(file.path)
    except (arrow.ArrowException, OSError):
        yield TableRange(file, "parquet", (), 0, file.size, fields, given)  # its reader says what is wrong
        return
    groups: list[int] = []
    size = rows = first = 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        groups.append(number)
        size += group.total_byte_size
        rows += group.num_rows
        if size >= unit_bytes or number + 1 == metadata.num_row_groups:
            share = round(file.size * len(groups) / metadata.num_row_groups)
            yield TableRange(file, "parquet", tuple(groups), first, share, fields, given)
            groups, size, first = [], 0, rows


def cut_arrow(file: Stamp, fields: Fields, given: str | None, unit_bytes: int) -> Iterator[TableRange]:
    """The units of one Arrow file; only the heads of its messages are read."""
    arrow = load_arrow()
    with open_file(file) as opened:
        layout: Layout = "file" if opened.read(len(_MAGIC)) == _MAGIC else "stream"
    try:
        marks = _batch_marks(file, layout)
    except (arrow.ArrowException, OSError, EOFError):
        marks = []  # its reader says what is wrong
    if not marks:
        yield TableRange(file, layout, (), 0, file.size, fields, given)
        return
    each = max(1, unit_bytes * len(marks) // max(1, file.size))
    for first in range(0, len(marks), each):
        groups = tuple(marks[first : first + each])
        size = round(file.size * len(groups) / len(marks))
        yield TableRange(file, layout, groups, first, size, fields, given)


def load_arrow() -> Any:
    """The package pyarrow; DataError that says how to get it."""
    return _load("pyarrow")


def _load(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise DataError(
            "reading Parquet and Arrow files needs the package pyarrow",
            hint="pip install 'torchrelay[data]'",
        ) from error


def _batch_marks(file: Stamp, layout: Layout) -> list[int]:
    """Numbers of the record batches, or where their messages begin; empty where a stream cannot be cut."""
    ipc = _load("pyarrow.ipc")
    with load_arrow().memory_map(file.path) as source:
        if layout == "file":
            return list(range(ipc.open_file(source).num_record_batches))
        marks: list[int] = []
        while True:
            place = source.tell()
            try:
                kind = ipc.read_message(source).type
            except EOFError:
                return marks
            if kind == "dictionary":
                return []
            if kind == "record batch":
                marks.append(place)


def _read_parquet(unit: TableRange) -> Iterator[tuple[str, Any]]:
    parquet = _load("pyarrow.parquet")
    with open_file(unit.file) as opened, parquet.ParquetFile(opened) as file:
        check_schema(file.schema_arrow, unit.fields, unit.file.path)
        row = unit.first
        names = unit.fields.names()
        for batch in file.iter_batches(_ROWS, row_groups=list(unit.groups), columns=names):
            yield f"row {row}", batch
            row += batch.num_rows


def _read_arrow(unit: TableRange) -> Iterator[tuple[str, Any]]:
    ipc = _load("pyarrow.ipc")
    with load_arrow().memory_map(unit.file.path) as source:
        if unit.layout == "file":
            opened = ipc.open_file(source)
            batches: Iterator[Any] = (opened.get_batch(number) for number in unit.groups)
        elif unit.groups:
            batches = _read_messages(ipc, source, unit.groups)
        else:
            batches = iter(ipc.open_stream(source))
        for number, batch in enumerate(batches, start=unit.first):
            yield f"record batch {number}, row", batch


def _read_messages(ipc: Any, source: Any, marks: tuple[int, ...]) -> Iterator[Any]:
    schema = ipc.read_schema(source)
    for mark in marks:
        source.seek(mark)
        yield ipc.read_record_batch(ipc.read_message(source), schema)


def _count_row(place: str, number: int) -> str:
    """`row 17`, or `record batch 3, row 17`; rows count from 1."""
    words, _, base = place.rpartition(" ")
    return f"{words} {int(base) + number}" if base.isdigit() else f"{place} {number}"


def _unreadable(file: Stamp, error: Exception) -> DataError:
    text = str(error).strip().splitlines() or [type(error).__name__]
    return DataError(f"cannot read {file.path}: {text[0][:300]}", hint="fetch or write the file again")
