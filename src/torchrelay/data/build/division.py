"""Which bytes of a document go to which split, and in which parts they are tokenised. Pure.

`document`: a hash of the document's text decides, so the same text is on the same side in every
version, and a duplicate never sits on both. `tail`: the end of every document is for validation.
"""

from collections.abc import Iterator
from typing import Literal, NamedTuple

import xxhash

from torchrelay.core.errors import DataError
from torchrelay.data.manifest import TRAIN, VALIDATION

SplitRule = Literal["document", "tail"]


class Span(NamedTuple):
    """Bytes [start, stop) of a document, for one split."""

    split: str
    start: int
    stop: int


def check_share(share: float) -> None:
    """DataError unless the share for validation leaves something on both sides."""
    if not 0 < share < 1:
        raise DataError(
            f"a validation share of {share:.3g} leaves one split empty",
            hint="use a share between 0% and 100%, such as 5%",
        )


def divide(text: memoryview, rule: SplitRule, share: float) -> list[Span]:
    """The spans of a document that has text; none of them is empty."""
    if rule == "document":
        is_validation = xxhash.xxh3_64_intdigest(text) < share * 2**64
        return [Span(VALIDATION if is_validation else TRAIN, 0, len(text))]
    cut = find_boundary(text, int(len(text) * (1 - share)))
    spans = [Span(TRAIN, 0, cut), Span(VALIDATION, cut, len(text))]
    return [span for span in spans if span.start < span.stop]


def cut_parts(text: memoryview, most: int) -> Iterator[range]:
    """Byte ranges that follow each other and cover `text`, none longer than `most` ≥ 8.

    Each ends after a line, if a line ends in its second half, and never inside a character.
    """
    start = 0
    while len(text) - start > most:
        middle = start + most // 2
        line_end = bytes(text[middle : start + most]).rfind(b"\n")
        stop = find_boundary(text, start + most) if line_end < 0 else middle + line_end + 1
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
