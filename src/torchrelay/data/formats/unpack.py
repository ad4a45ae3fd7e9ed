"""What is done to a shard once, when it arrives, so that its samples can be read in place.

zstd, gzip    uncompressed; several frames or members behind each other count as one stream
arrow         a Parquet file becomes an uncompressed Arrow IPC file, row group by row group

Memory stays bounded: by a piece of the stream, or by one row group.
"""

import importlib
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from torchrelay.core.errors import DataError
from torchrelay.data.manifest import Unpack

_READ_BYTES = 2**20
_FEED_BYTES = 2**16
"""Given to a decompressor at once, which bounds what comes out of one call."""
_GZIP = 16 + zlib.MAX_WBITS

Unpacker = Callable[[Iterable[bytes]], Iterator[bytes]]


def unpack(kind: Unpack, source: Path, target: Path) -> None:
    """Write what `source` holds to `target`, which is created or overwritten.

    DataError when the source is damaged or a package is missing; OSError when the disk is full.
    """
    if kind == "arrow":
        from torchrelay.data.formats.arrow_file import transcode

        transcode(source, target)
        return
    with source.open("rb") as file, target.open("wb") as out:
        try:
            for piece in stream_unpacker(kind)(iter(lambda: file.read(_READ_BYTES), b"")):
                out.write(piece)
        except ValueError as error:
            raise DataError(f"cannot unpack {source}: {error}") from error


def stream_unpacker(kind: Unpack | None) -> Unpacker:
    """What turns the pieces of a packed stream into pieces of its content; ValueError when it is damaged."""
    if kind is None:
        return iter
    if kind == "arrow":
        raise ValueError("a Parquet file is not unpacked as a stream")
    codec = _choose_codec(kind)
    return lambda pieces: _decompress(pieces, codec, kind)


def import_extra(name: str, purpose: str) -> ModuleType:
    """A package of `torchrelay[data]`; DataError that says how to get it when it is missing."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        package = name.partition(".")[0]
        raise DataError(
            f"{purpose} needs the package {package}", hint="pip install 'torchrelay[data]'"
        ) from error


class _Codec(NamedTuple):
    """How one frame is unpacked."""

    make: Callable[[], Any]
    """A fresh object with `decompress`, `eof` and `unused_data`."""
    error: type[Exception]


def _choose_codec(kind: Unpack) -> _Codec:
    if kind == "gzip":
        return _Codec(lambda: zlib.decompressobj(_GZIP), zlib.error)
    zstandard = import_extra("zstandard", "unpacking zstd")
    return _Codec(lambda: zstandard.ZstdDecompressor().decompressobj(), zstandard.ZstdError)


def _decompress(pieces: Iterable[bytes], codec: _Codec, kind: str) -> Iterator[bytes]:
    """One frame after the other; a stream that ends inside one was cut off."""
    current, place = codec.make(), 0
    for piece in _slices(pieces):
        rest: bytes = piece
        while rest:
            if current.eof:
                current = codec.make()
            try:
                content = current.decompress(rest)
            except codec.error as error:
                raise ValueError(f"the {kind} stream is damaged near byte {place:,}: {error}") from error
            if content:
                yield content
            rest = current.unused_data if current.eof else b""
        place += len(piece)
    if not current.eof:
        raise ValueError(f"the {kind} stream is cut off at byte {place:,}")


def _slices(pieces: Iterable[bytes]) -> Iterator[bytes]:
    for piece in pieces:
        for start in range(0, len(piece), _FEED_BYTES):
            yield piece[start : start + _FEED_BYTES]
