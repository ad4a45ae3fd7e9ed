"""Tables in CSV files: the first record of every file names the columns, each further one is a sample.

Fields stay texts here; what they are is found by reading all of them. A large file is divided between
records, wherever quotes and line ends stand; one that is compressed (.gz, .zst) is not divided.
"""

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torchrelay.core.errors import DataError
from torchrelay.data.build.document import show
from torchrelay.data.build.files import Stamp, find_files, hash_parts, open_stream
from torchrelay.data.build.sample_input import UNIT_BYTES, BadSample, Cell, RawSample

MOST_FIELD_CHARACTERS = 2**30
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_OTHER_DELIMITERS = (";", "\t")
_NOT_CSV = (csv.Error, UnicodeDecodeError)


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvUnit:
    """The records in bytes [start, stop) of a file, the header included; see `SampleUnit`."""

    file: Stamp
    start: int
    stop: int | None
    """None: the end of the file."""
    line: int
    """Line at which it begins, from 1."""
    names: tuple[str, ...]
    delimiter: str
    split: str | None

    @property
    def id(self) -> str:
        """See `SampleUnit.id`."""
        return hash_parts("csv", self.file, self.start, self.stop, self.names, self.delimiter, self.split)

    @property
    def where(self) -> str:
        """See `SampleUnit.where`."""
        return f"{self.file.path} from line {self.line} on"

    @property
    def size(self) -> int:
        """See `SampleUnit.size`."""
        return (self.file.size if self.stop is None else self.stop) - self.start

    def prepared(self) -> "CsvUnit":
        """See `SampleUnit.prepared`."""
        return self

    def samples(self) -> Iterator[RawSample | BadSample]:
        """See `SampleUnit.samples`."""
        with open_stream(self.file) as file:
            if self.start:
                file.seek(self.start)
            lines = _Lines(file, self.start, self.stop)
            reader = csv.reader(lines, delimiter=self.delimiter, strict=True)
            if not self.start:
                _read_header(reader, self.file)
            while True:
                where = f"{self.file.path}:{self.line + lines.count}"
                try:
                    fields = next(reader, None)
                except _NOT_CSV as error:
                    yield _unreadable(where, error)
                    return
                if fields is None:
                    return
                if fields:
                    yield self._sample(fields, where)

    def preview(self) -> Iterator[RawSample | BadSample]:
        """See `SampleUnit.preview`."""
        return self.samples()

    def _sample(self, fields: list[str], where: str) -> RawSample | BadSample:
        if len(fields) != len(self.names):
            why = f"has {len(fields)} fields, the header has {len(self.names)}"
            return BadSample(where, why, "fields that hold the delimiter or line ends stand in quotes")
        return RawSample(dict(zip(self.names, map(Cell, fields), strict=True)), where, where)


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvFiles:
    """Tables with one and the same header; see `SampleInput`."""

    patterns: Sequence[str]
    delimiter: str = ","
    split: str | None = None

    @property
    def default_label(self) -> str | None:
        """See `SampleInput.default_label`."""
        return None

    def units(self) -> Sequence[CsvUnit]:
        """See `SampleInput.units`; sorted by path, then by line. Reads files larger than a unit once."""
        return [unit for file in find_files(self.patterns) for unit in self._divide(file)]

    def label_names(self) -> None:
        """See `SampleInput.label_names`; they are found by reading."""

    def describe(self) -> dict[str, Any]:
        """See `SampleInput.describe`."""
        return {"csv": list(self.patterns), "delimiter": self.delimiter}

    def _divide(self, stamp: Stamp) -> Iterator[CsvUnit]:
        with open_stream(stamp) as file:
            lines = _Lines(file, 0, None)
            reader = csv.reader(lines, delimiter=self.delimiter, strict=True)
            names = _read_header(reader, stamp)
            begin = _Place(0, 1)
            for end in [*_borders(reader, lines, stamp), None]:
                yield CsvUnit(
                    file=stamp,
                    start=begin.offset,
                    stop=None if end is None else end.offset,
                    line=begin.line,
                    names=names,
                    delimiter=self.delimiter,
                    split=self.split,
                )
                begin = end or begin


class _Place(NamedTuple):
    offset: int
    line: int


class _Lines:
    """Lines of a file from where it stands up to a byte, as texts; counts what was given."""

    def __init__(self, file: Any, start: int, stop: int | None) -> None:
        self._file = file
        self._start = start
        self._stop = stop
        self.offset = start
        """Byte after the last line that was given."""
        self.count = 0
        """Lines given."""

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line: bytes = b"" if self.offset == self._stop else self._file.readline()
        if not line:
            raise StopIteration
        is_first = self.offset == 0
        self.offset += len(line)
        self.count += 1
        return (line.removeprefix(_BYTE_ORDER_MARK) if is_first else line).decode()


def _borders(reader: Any, lines: _Lines, stamp: Stamp) -> Iterator[_Place]:
    """Where units after the first begin."""
    if stamp.compressed or stamp.size <= UNIT_BYTES:
        return
    last = 0
    try:
        for _ in reader:
            if lines.offset - last >= UNIT_BYTES and stamp.size - lines.offset > 0:
                last = lines.offset
                yield _Place(last, lines.count + 1)
    except _NOT_CSV:
        return  # told by the unit that reads it


def _read_header(reader: Any, stamp: Stamp) -> tuple[str, ...]:
    csv.field_size_limit(MOST_FIELD_CHARACTERS)
    try:
        names = tuple(name.strip() for name in next(reader, ()))
    except _NOT_CSV as error:
        raise _unreadable(f"{stamp.path}:1", error).error() from error
    repeated = next((name for name in names if names.count(name) > 1), None)
    if not names or "" in names or repeated:
        why = f"names {repeated!r} twice" if repeated else "has a column without a name"
        raise DataError(
            f"{stamp.path}:1: the header {why if names else 'is missing'}",
            hint="the first line of a CSV file names its columns",
        )
    other = next((mark for mark in _OTHER_DELIMITERS if len(names) == 1 and mark in names[0]), None)
    if other is not None:
        raise DataError(
            f"{stamp.path}:1: the header has one column only, {show(names[0])}",
            hint=f"fields that {other!r} divides are read with --delimiter {other!r}",
        )
    return names


def _unreadable(where: str, error: Exception) -> BadSample:
    """Nothing after it can be told apart either."""
    if isinstance(error, UnicodeDecodeError):
        return BadSample(where, f"not valid UTF-8 ({error.reason}); the rest is not read", "convert the file")
    return BadSample(where, f"not valid CSV ({error}); the rest is not read", "check the quotes")
