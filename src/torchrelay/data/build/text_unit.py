"""Plain text: a file is a document. Small files go together, large ones are cut where their pieces end."""

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from torchrelay.core.errors import DataError
from torchrelay.data.build.division import (
    PART_BYTES,
    Division,
    Piece,
    Span,
    cut_document,
    cut_parts,
    divide,
    find_bad_byte,
    make_piece,
    not_utf8,
    place,
)
from torchrelay.data.build.document import Document, Intake, say_count
from torchrelay.data.build.files import Stamp, hash_parts, map_file, unpack_file

_MOST_FILES = 2000


@dataclass(frozen=True, slots=True)
class TextGroup:
    """Whole files, one after the other."""

    files: tuple[Stamp, ...]
    given: str | None
    """Split that they belong to, where that was said."""

    @property
    def id(self) -> str:
        """See `Unit`."""
        return hash_parts("text", self.files, self.given)

    @property
    def where(self) -> str:
        """See `Unit`."""
        more = len(self.files) - 1
        return self.files[0].path + (f" and {say_count(more, 'more file')}" if more else "")

    @property
    def size(self) -> int:
        """See `Unit`."""
        return sum(file.size for file in self.files)

    def prepared(self) -> "TextGroup":
        """See `Unit`."""
        return self

    def pieces(self, division: Division, intake: Intake) -> Iterator[Piece]:
        """See `Unit`."""
        for file in self.files:
            text = map_file(file)
            if file.compressed:
                try:
                    text = unpack_file(file, intake.scratch)
                except DataError as error:
                    intake.refuse(error)
                    continue
            yield from cut_document(Document(text, file.path, split=self.given), division, intake)


class _Whole(NamedTuple):
    """What must be known of a whole file before a part of it can be placed."""

    spans: tuple[tuple[Span, int], ...]
    """With the id of each."""
    bad_byte: int | None


@dataclass(frozen=True, slots=True)
class TextPart:
    """Some pieces of one large file."""

    file: Stamp
    given: str | None
    division: Division
    parts: tuple[tuple[int, int], ...]
    """First byte of each piece, and the byte after it."""
    whole: _Whole | None = None

    @property
    def id(self) -> str:
        """See `Unit`."""
        return hash_parts("part", self.file, self.given, self.parts)

    @property
    def where(self) -> str:
        """See `Unit`."""
        return f"{self.file.path} (bytes {self.parts[0][0]:,} to {self.parts[-1][1]:,})"

    @property
    def size(self) -> int:
        """See `Unit`."""
        return self.parts[-1][1] - self.parts[0][0]

    def prepared(self) -> "TextPart":
        """See `Unit`: hashes and checks the whole file when its first part comes."""
        return replace(self, whole=_look_through(self.file, self.given, self.division))

    def pieces(self, division: Division, intake: Intake) -> Iterator[Piece]:
        """See `Unit`."""
        whole = self.whole or _look_through(self.file, self.given, self.division)
        is_first = self.parts[0][0] == 0
        if whole.bad_byte is not None:
            if is_first:
                intake.refuse(not_utf8(self.file.path, whole.bad_byte))
            return
        intake.documents += is_first
        document = Document(map_file(self.file), self.file.path, split=self.given)
        for start, stop in self.parts:
            span, document_id = next(pair for pair in whole.spans if pair[0].start <= start < pair[0].stop)
            part = range(start - span.start, stop - span.start)
            yield make_piece(document, division, span, part, document_id)


def group_texts(
    files: list[Stamp], given: str | None, division: Division, unit_bytes: int
) -> Iterator[TextGroup | TextPart]:
    """The units of some files, in their order."""
    group: list[Stamp] = []
    size = 0
    for file in files:
        cuttable = file.size > max(PART_BYTES, unit_bytes) and not file.compressed and not division.whole
        if group and (cuttable or size + file.size > unit_bytes or len(group) == _MOST_FILES):
            yield TextGroup(tuple(group), given)
            group, size = [], 0
        if cuttable:
            yield from _cut_file(file, given, division, unit_bytes)
        else:
            group.append(file)
            size += file.size
    if group:
        yield TextGroup(tuple(group), given)


def _cut_file(file: Stamp, given: str | None, division: Division, unit_bytes: int) -> Iterator[TextPart]:
    text = map_file(file)
    spans = [Span("", 0, len(text))]  # by document; its split needs a hash of all of it, which can wait
    if division.rule == "tail" and given is None:
        spans = divide(text, "tail", division.validation, division.test)
    parts: list[tuple[int, int]] = []
    for span in spans:
        for part in cut_parts(text[span.start : span.stop], PART_BYTES):
            if parts and span.start + part.stop - parts[0][0] > unit_bytes:
                yield TextPart(file, given, division, tuple(parts))
                parts = []
            parts.append((span.start + part.start, span.start + part.stop))
    yield TextPart(file, given, division, tuple(parts))


@functools.lru_cache(maxsize=1)
def _look_through(file: Stamp, given: str | None, division: Division) -> _Whole:
    text = map_file(file)
    bad_byte = find_bad_byte(text) if division.is_text else None
    return _Whole(tuple(place(Document(text, file.path, split=given), division)), bad_byte)
