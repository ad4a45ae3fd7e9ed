"""JSON lines: a line is a document. Files are cut anywhere; a line belongs to the range it begins in."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

from torchrelay.core.errors import DataError
from torchrelay.data.build.division import Division, Piece, cut_document
from torchrelay.data.build.document import Fields, Intake, show
from torchrelay.data.build.files import Stamp, count_lines, hash_parts, open_file, open_stream


@dataclass(frozen=True, slots=True)
class LineRange:
    """The lines of a file that begin in bytes [start, stop); all of them where the file is compressed."""

    file: Stamp
    start: int
    stop: int
    fields: Fields
    given: str | None

    @property
    def id(self) -> str:
        """See `Unit`."""
        return hash_parts("lines", self.file, self.start, self.stop, self.fields, self.given)

    @property
    def where(self) -> str:
        """See `Unit`."""
        whole = (self.start, self.stop) == (0, self.file.size)
        return self.file.path + ("" if whole else f" (bytes {self.start:,} to {self.stop:,})")

    @property
    def size(self) -> int:
        """See `Unit`."""
        return self.stop - self.start

    def prepared(self) -> "LineRange":
        """See `Unit`."""
        return self

    def pieces(self, division: Division, intake: Intake) -> Iterator[Piece]:
        """See `Unit`."""
        for number, offset, line in self._lines(intake):
            try:
                where = self._name_line(number, offset)
                document = self.fields.document(_parse(line, where, offset), where)
                document = document._replace(split=document.split or self.given)
            except DataError as error:
                intake.refuse(self._numbered(error, number, offset))
                continue
            yield from cut_document(document, division, intake)

    def _lines(self, intake: Intake) -> Iterator[tuple[int, int, bytes]]:
        """Number from the start of the range, place in the file and content of every line with text."""
        if not self.file.compressed:
            with open_file(self.file) as file:
                offset = _skip_line(file, self.start)
                yield from _number(file, offset, self.stop)
            return
        open_file(self.file).close()  # unchanged since the build began
        try:
            with open_stream(self.file) as stream:
                yield from _number(stream, 0, None)
        except DataError as error:
            intake.refuse(error)

    def _name_line(self, number: int, offset: int) -> str:
        """By its number where that is known without reading what stands before the range."""
        known = self.start == 0 or self.file.compressed
        return f"{self.file.path}:{number}" if known else f"{self.file.path} at byte {offset:,}"

    def _numbered(self, error: DataError, number: int, offset: int) -> DataError:
        """The error with the line's number, which is only counted when it is needed."""
        name = self._name_line(number, offset)
        if name == f"{self.file.path}:{number}":
            return error
        number = count_lines(self.file, offset) + 1
        return DataError(error.message.replace(name, f"{self.file.path}:{number}", 1), hint=error.hint)


def cut_lines(files: list[Stamp], fields: Fields, given: str | None, unit_bytes: int) -> Iterator[LineRange]:
    """The units of some files, in their order."""
    for file in files:
        step = file.size if file.compressed else unit_bytes
        for start in range(0, file.size, max(1, step)):
            yield LineRange(file, start, min(file.size, start + step), fields, given)


def _skip_line(file: BinaryIO, start: int) -> int:
    """Move to the first line that begins at `start` or after it; gives its place."""
    if start == 0:
        return 0
    file.seek(start - 1)
    return start - 1 + len(file.readline())


def _number(file: BinaryIO, offset: int, stop: int | None) -> Iterator[tuple[int, int, bytes]]:
    for number, line in enumerate(file, start=1):
        if stop is not None and offset >= stop:
            return
        if line.strip():
            yield number, offset, line
        offset += len(line)


def _parse(line: bytes, where: str, offset: int) -> dict[str, Any]:
    try:
        text = line.decode()
        record = json.loads(text.removeprefix("\ufeff") if offset == 0 else text)
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: not valid UTF-8 at byte {offset + error.start}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not valid JSON: {error}") from error
    if not isinstance(record, dict):
        raise DataError(f"{where}: {show(record)} is not a JSON object")
    return record
