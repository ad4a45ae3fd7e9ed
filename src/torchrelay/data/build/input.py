"""Documents from files: plain text, one a file, or JSON lines, one a line.

An input gives the same documents in the same order every time it is read, so a build may read it
twice. Every error names the file and the line or byte.
"""

import glob
import json
import mmap
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from torchrelay.core.errors import DataError

Label = int | str


class Document(NamedTuple):
    """One document as it came."""

    text: memoryview
    """Bytes, UTF-8 where the input is text."""
    label: Label | None
    """Its class, where the input has labels."""
    where: str
    """File, or file:line."""
    input_bytes: int
    """Bytes of input it was read from, for progress."""


class Input(Protocol):
    """Where documents come from."""

    @property
    def labelled(self) -> bool:
        """Whether every document has a label."""

    def documents(self) -> Iterator[Document]:
        """All documents; DataError at the first that cannot be read."""

    def total_bytes(self) -> int:
        """Sum of `input_bytes` over all documents, about."""

    def describe(self) -> dict[str, Any]:
        """The arguments it was made from, for the build record."""


@dataclass(frozen=True, slots=True)
class TextFiles:
    """Every file that a pattern matches is a document."""

    patterns: Sequence[str]

    @property
    def labelled(self) -> bool:
        """Plain text has no labels."""
        return False

    def documents(self) -> Iterator[Document]:
        """See `Input.documents`; sorted by path."""
        for path in match_files(self.patterns):
            text = _map(path)
            yield Document(text, None, str(path), len(text))

    def total_bytes(self) -> int:
        """See `Input.total_bytes`."""
        return sum(path.stat().st_size for path in match_files(self.patterns))

    def describe(self) -> dict[str, Any]:
        """See `Input.describe`."""
        return {"text": list(self.patterns)}


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonLines:
    """Every line of a file that a pattern matches is a document: `field` of a JSON object."""

    patterns: Sequence[str]
    field: str
    label_field: str | None = None

    @property
    def labelled(self) -> bool:
        """Whether a label field was named."""
        return self.label_field is not None

    def documents(self) -> Iterator[Document]:
        """See `Input.documents`; sorted by path, then by line. Blank lines are left out."""
        for path in match_files(self.patterns):
            with _open(path) as file:
                yield from self._read(file, path)

    def total_bytes(self) -> int:
        """See `Input.total_bytes`."""
        return sum(path.stat().st_size for path in match_files(self.patterns))

    def describe(self) -> dict[str, Any]:
        """See `Input.describe`."""
        label = {} if self.label_field is None else {"label_field": self.label_field}
        return {"jsonl": list(self.patterns), "field": self.field, **label}

    def _read(self, file: Iterable[bytes], path: Path) -> Iterator[Document]:
        offset = 0
        for number, line in enumerate(file, start=1):
            if line.strip():
                record = _parse_line(line, path, number, offset)
                yield self._document(record, f"{path}:{number}", len(line))
            offset += len(line)

    def _document(self, record: dict[str, Any], where: str, size: int) -> Document:
        text = _field(record, self.field, where)
        if not isinstance(text, str):
            raise DataError(f"{where}: field {self.field!r} is {_show(text)}, not a text")
        label = None
        if self.label_field is not None:
            label = _field(record, self.label_field, where)
            if isinstance(label, bool) or not isinstance(label, int | str):
                raise DataError(
                    f"{where}: label field {self.label_field!r} is {_show(label)}, not a whole number or text"
                )
        try:
            return Document(memoryview(text.encode()), label, where, size)
        except UnicodeEncodeError as error:
            raise DataError(
                f"{where}: field {self.field!r} holds half of a surrogate pair at character {error.start}"
            ) from error


def match_files(patterns: Sequence[str]) -> list[Path]:
    """Files that any pattern matches, each once, sorted; DataError that names a pattern without a match."""
    found: dict[str, Path] = {}
    for pattern in patterns:
        matches = glob.glob(os.path.expanduser(pattern), recursive=True)
        files = [Path(match) for match in matches if os.path.isfile(match)]
        if not files:
            folder = next((match for match in matches if os.path.isdir(match)), None)
            raise DataError(
                f"no file matches {pattern!r}",
                hint=f"to read the files of the folder, write '{folder}/*'"
                if folder
                else f"the pattern is read from the folder {os.getcwd()}; ** crosses folders",
            )
        for file in files:
            found.setdefault(os.path.realpath(file), file)
    return sorted(found.values(), key=os.path.abspath)


def _map(path: Path) -> memoryview:
    with _open(path) as file:
        if os.fstat(file.fileno()).st_size == 0:
            return memoryview(b"")
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def _open(path: Path) -> Any:
    try:
        return path.open("rb")
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error


def _parse_line(line: bytes, path: Path, number: int, offset: int) -> dict[str, Any]:
    try:
        text = line.decode()
        record = json.loads(text.removeprefix("\ufeff") if number == 1 else text)
    except UnicodeDecodeError as error:
        raise DataError(f"{path}:{number}: not valid UTF-8 at byte {offset + error.start}") from error
    except ValueError as error:
        raise DataError(f"{path}:{number}: not valid JSON: {error}") from error
    if not isinstance(record, dict):
        raise DataError(f"{path}:{number}: {_show(record)} is not a JSON object")
    return record


def _field(record: dict[str, Any], name: str, where: str) -> Any:
    if name not in record:
        raise DataError(
            f"{where}: there is no field {name!r}",
            hint=f"fields there: {', '.join(sorted(record)) or 'none'}",
        )
    return record[name]


def _show(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:40]}…"
