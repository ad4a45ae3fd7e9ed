"""The files of a tar, read as a stream. Understands ustar, pax and GNU names; nothing is written."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from torchrelay.data.adopt.stream import PieceReader

BLOCK = 512
_FILES = (b"0", b"\0", b"7")
_LONGEST_NAME = 2**20
_PAX = re.compile(rb"(\d+) ([^=]+)=")


class Member(NamedTuple):
    """One regular file; its bytes may be taken from the reader until the next is asked for."""

    name: str
    start: int
    """Byte of the tar at which its content begins."""
    size: int


def walk_tar(reader: PieceReader) -> Iterator[Member]:
    """The regular files in order; ValueError that names the byte where the tar is damaged or cut off."""
    extra: dict[str, str] = {}
    while True:
        at = reader.position
        block = reader.take(BLOCK)
        if len(block) < BLOCK:
            raise ValueError(f"it is cut off at byte {reader.position:,}: a tar ends with two empty blocks")
        if not any(block):
            _check_end(reader)
            return
        _check_sum(block, at)
        kind = block[156:157]
        size = int(extra["size"]) if "size" in extra else _number(block[124:136], at)
        if kind in (b"x", b"L"):
            extra |= _read_extra(reader, kind, size, at)
            continue
        start = reader.position
        if kind in _FILES:
            yield Member(extra.get("path") or _name(block), start, size)
        _skip_to(reader, start + -(-size // BLOCK) * BLOCK)
        if kind not in (b"g", b"K"):
            extra = {}


def _skip_to(reader: PieceReader, place: int) -> None:
    missing = place - reader.position
    if reader.skip(missing) < missing:
        raise ValueError(f"it is cut off at byte {reader.position:,}, inside a file")


def _check_end(reader: PieceReader) -> None:
    """Nothing but zeros stands behind the end."""
    for piece in reader.rest():
        if bytes(piece).strip(b"\0"):
            raise ValueError(
                f"there are bytes behind its end, before byte {reader.position:,}; "
                "tars behind each other are not read"
            )


def _read_extra(reader: PieceReader, kind: bytes, size: int, at: int) -> dict[str, str]:
    """What a header for the next file says."""
    if size > _LONGEST_NAME:
        raise ValueError(f"the header at byte {at:,} is {size:,} bytes long")
    start = reader.position
    content = reader.take(size)
    _skip_to(reader, start + -(-size // BLOCK) * BLOCK)
    if kind == b"L":
        return {"path": content.rstrip(b"\0").decode(errors="surrogateescape")}
    return _parse_pax(content, at)


def _parse_pax(content: bytes, at: int) -> dict[str, str]:
    found: dict[str, str] = {}
    place = 0
    while place < len(content):
        head = _PAX.match(content, place)
        if head is None or not head.end() < place + int(head[1]) <= len(content):
            raise ValueError(f"the pax header at byte {at:,} is damaged")
        value = content[head.end() : place + int(head[1]) - 1]
        found[head[2].decode(errors="replace")] = value.decode(errors="surrogateescape")
        place += int(head[1])
    if not found.get("size", "0").isdigit():
        raise ValueError(f"the pax header at byte {at:,} is damaged")
    return {name: found[name] for name in ("path", "size") if name in found}


def _check_sum(block: bytes, at: int) -> None:
    told = block[148:156].strip(b" \0")
    unsigned = sum(block) - sum(block[148:156]) + 8 * 32
    if not told.isdigit() or int(told, 8) != unsigned:
        raise ValueError(f"there is no tar header at byte {at:,}")


def _number(field: bytes, at: int) -> int:
    """A size in octal digits, or in binary where it is large."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    digits = field.strip(b" \0")
    try:
        return int(digits or b"0", 8)
    except ValueError as error:
        raise ValueError(f"the tar header at byte {at:,} has the size {digits!r}") from error


def _name(block: bytes) -> str:
    name = block[:100].partition(b"\0")[0].decode(errors="surrogateescape")
    prefix = block[345:500].partition(b"\0")[0].decode(errors="surrogateescape")
    return f"{prefix}/{name}" if prefix and block[257:263] == b"ustar\0" else name
