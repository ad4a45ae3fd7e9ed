"""Which bytes of a document go to which split, and in which parts they are tokenised. Pure.

`document`: a hash of the document (or of its own id) decides, so the same document is on the same
side in every version, and a duplicate never sits on both. `tail`: the end of every document is
kept for validation and test.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import xxhash

from torchrelay.core.errors import DataError
from torchrelay.data.build.document import Document, Intake
from torchrelay.data.manifest import TRAIN, VALIDATION

SplitRule = Literal["document", "tail"]
TEST = "test"

PART_BYTES = 8 * 2**20
"""Longest text that is tokenised at once; longer documents are cut after a line. Decides the tokens of
documents longer than that, so a change of it changes versions."""
_LOOK_BYTES = 2**16


class Span(NamedTuple):
    """Bytes [start, stop) of a document, for one split."""

    split: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """How documents are divided between the splits and cut in pieces."""

    rule: SplitRule = "document"
    validation: float = 0.05
    test: float = 0.0
    is_text: bool = False
    """Whether documents must be UTF-8 and pieces are given as `str`."""
    whole: bool = False
    """Whether the pieces of a document must all come from one unit."""


class Piece(NamedTuple):
    """A part of a document that goes to one split, small enough to be tokenised at once."""

    split: str
    text: memoryview | str
    size: int
    """Bytes of its text."""
    is_last: bool
    """Whether the document ends with it, as far as the split is concerned."""
    document: Document
    document_id: int
    """Below 2**64: hash of what the split gets of the document, or of the id that it came with."""


def check_shares(validation: float, test: float) -> None:
    """DataError unless the shares leave something for training."""
    if not (0 <= validation < 1 and 0 <= test < 1 and validation + test < 1):
        raise DataError(
            f"{validation * 100:.3g}% for validation and {test * 100:.3g}% for test leave nothing for "
            "training",
            hint="use shares from 0% to below 100% in all, such as 5%",
        )


def choose_split(document_id: int, validation: float, test: float) -> str:
    """The split of a whole document. Each share takes its own end of the range of hashes, so that
    changing one moves no document in or out of the other.
    """
    if document_id < validation * 2**64:
        return VALIDATION
    return TEST if document_id >= (1 - test) * 2**64 else TRAIN


def divide(text: memoryview, rule: SplitRule, validation: float, test: float = 0.0) -> list[Span]:
    """The spans of a document that has text; none of them is empty."""
    if rule == "document":
        return [Span(choose_split(xxhash.xxh3_64_intdigest(text), validation, test), 0, len(text))]
    first = find_boundary(text, int(len(text) * (1 - validation - test)))
    second = find_boundary(text, int(len(text) * (1 - test))) if test else len(text)
    spans = [Span(TRAIN, 0, first), Span(VALIDATION, first, second), Span(TEST, second, len(text))]
    return [span for span in spans if span.start < span.stop]


def place(document: Document, division: Division) -> list[tuple[Span, int]]:
    """The spans of a document that has text, each with the id of what the split gets."""
    own = None if document.key is None else xxhash.xxh3_64_intdigest(document.key)
    if division.rule == "tail" and document.split is None:
        spans = divide(document.text, "tail", division.validation, division.test)
        ids = [xxhash.xxh3_64_intdigest(document.text[span.start : span.stop]) for span in spans]
        return [(span, found if own is None else own) for span, found in zip(spans, ids, strict=True)]
    document_id = xxhash.xxh3_64_intdigest(document.text) if own is None else own
    split = document.split or choose_split(document_id, division.validation, division.test)
    return [(Span(split, 0, len(document.text)), document_id)]


def cut_document(document: Document, division: Division, intake: Intake) -> Iterator[Piece]:
    """The pieces of one document; counts it, and refuses it as a whole when it is not UTF-8."""
    size = len(document.text)
    bad = find_bad_byte(document.text) if division.is_text else None
    if bad is not None:
        intake.refuse(not_utf8(document.where, bad))
        return
    intake.documents += 1
    intake.empty += size == 0
    if size:
        for span, document_id in place(document, division):
            text = document.text[span.start : span.stop]
            for part in cut_parts(text, PART_BYTES):
                yield make_piece(document, division, span, part, document_id)


def make_piece(document: Document, division: Division, span: Span, part: range, document_id: int) -> Piece:
    """The piece for bytes `part` of `span`; its text is known to be sound."""
    text = document.text[span.start + part.start : span.start + part.stop]
    is_last = part.stop == span.stop - span.start
    shown = str(text, "utf-8") if division.is_text else text
    return Piece(span.split, shown, len(text), is_last, document, document_id)


def cut_parts(text: memoryview, most: int) -> Iterator[range]:
    """Byte ranges that follow each other and cover `text`, none longer than `most` ≥ 8.

    Each ends after a line, if a line ends in its second half, and never inside a character.
    """
    start = 0
    while len(text) - start > most:
        line_end = _last_line_end(text, start + most // 2, start + most)
        stop = find_boundary(text, start + most) if line_end is None else line_end
        yield range(start, stop)
        start = stop
    yield range(start, len(text))


def find_boundary(text: memoryview, place: int) -> int:
    """The last byte at or before `place` that does not stand inside a UTF-8 character."""
    if place >= len(text):
        return len(text)
    for back in range(min(4, place + 1)):
        if text[place - back] & 0xC0 != 0x80:
            return place - back
    return place  # not UTF-8


def find_bad_byte(text: memoryview) -> int | None:
    """The first byte that is not UTF-8, or None; needs little memory however long the text is."""
    for part in cut_parts(text, PART_BYTES):
        try:
            str(text[part.start : part.stop], "utf-8")
        except UnicodeDecodeError as error:
            return part.start + error.start
    return None


def not_utf8(where: str, byte: int) -> DataError:
    """The document at `where` is not text."""
    return DataError(
        f"{where} is not valid UTF-8 at byte {byte}",
        hint="convert the file, or use --tokenizer bytes, which takes any bytes",
    )


def _last_line_end(text: memoryview, first: int, stop: int) -> int | None:
    """The byte after the last newline in [first, stop), looked for from the end."""
    while stop > first:
        start = max(first, stop - _LOOK_BYTES)
        found = bytes(text[start:stop]).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        stop = start
    return None
