"""Files of an input: found by pattern, known by size and time, read as they lie or decompressed."""

import glob
import gzip
import importlib
import io
import mmap
import os
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

import xxhash

from torchrelay.core.errors import DataError

_COMPRESSED = (".gz", ".zst")
_CHUNK_BYTES = 2**20


class Stamp(NamedTuple):
    """A file as it was when the build began."""

    path: str
    size: int
    modified_ns: int

    @property
    def compressed(self) -> bool:
        """Whether it must be read from its beginning."""
        return self.path.endswith(_COMPRESSED)


def hash_parts(*parts: object) -> str:
    """32 hex digits over the printed form of some plain values."""
    return xxhash.xxh3_128_hexdigest(repr(parts).encode(errors="surrogatepass"))


def find_files(patterns: Sequence[str]) -> list[Stamp]:
    """Stamps of `match_files`."""
    return [stamp_file(path) for path in match_files(patterns)]


def stamp_file(path: Path) -> Stamp:
    """The stamp of one file; DataError when it is not there."""
    try:
        status = path.stat()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    return Stamp(str(path), status.st_size, status.st_mtime_ns)


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


def open_file(stamp: Stamp) -> BinaryIO:
    """The file as it lies; DataError when it cannot be read or is not what it was when the build began."""
    try:
        file = Path(stamp.path).open("rb")  # noqa: SIM115 - the caller closes it
    except OSError as error:
        raise DataError(f"cannot read {stamp.path}: {error.strerror}") from error
    status = os.fstat(file.fileno())
    if (status.st_size, status.st_mtime_ns) != (stamp.size, stamp.modified_ns):
        file.close()
        raise DataError(
            f"{stamp.path} changed while it was read: it had {stamp.size:,} bytes, now {status.st_size:,}",
            hint="run the command again when nobody writes to it any more",
        )
    return file


def map_file(stamp: Stamp) -> memoryview:
    """The bytes of a file, mapped; errors as `open_file`."""
    with open_file(stamp) as file:
        return _map(file)


@contextmanager
def open_stream(stamp: Stamp) -> Iterator[BinaryIO]:
    """The bytes of a file that may be compressed; DataError that names it when they cannot be read."""
    with open_file(stamp) as file:
        try:
            yield _decompressed(stamp, file)
        except (EOFError, zlib.error, gzip.BadGzipFile, _DamagedStream) as error:
            raise DataError(
                f"{stamp.path} is damaged or cut off: {error}", hint="fetch or compress the file again"
            ) from error


def unpack_file(stamp: Stamp, scratch: Path) -> memoryview:
    """All bytes of a compressed file, mapped from a file in `scratch` that has no name."""
    with tempfile.TemporaryFile(dir=scratch) as target:
        with open_stream(stamp) as stream:
            while chunk := stream.read(_CHUNK_BYTES):
                target.write(chunk)
        target.flush()
        return _map(cast(BinaryIO, target))


def count_lines(stamp: Stamp, stop: int) -> int:
    """Newlines before byte `stop`; for errors."""
    count = 0
    with open_file(stamp) as file:
        while stop > 0 and (chunk := file.read(min(stop, _CHUNK_BYTES))):
            count += chunk.count(b"\n")
            stop -= len(chunk)
    return count


def _map(file: BinaryIO) -> memoryview:
    if os.fstat(file.fileno()).st_size == 0:
        return memoryview(b"")
    return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def _decompressed(stamp: Stamp, file: BinaryIO) -> BinaryIO:
    if stamp.path.endswith(".gz"):
        return cast(BinaryIO, gzip.GzipFile(fileobj=file, mode="rb"))
    if stamp.path.endswith(".zst"):
        return io.BufferedReader(_ZstdReader(file), _CHUNK_BYTES)
    return file


class _DamagedStream(Exception):
    """A compressed stream that cannot be right."""


class _ZstdReader(io.RawIOBase):
    """Frames of zstd one after the other; unlike the library's own reader it tells a cut-off file."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._library = _load_zstandard()
        self._frame: Any = None
        """The frame that is open, or None between frames."""
        self._input = b""
        self._output = memoryview(b"")

    def readable(self) -> bool:
        """See `io.RawIOBase`."""
        return True

    def readinto(self, buffer: Any) -> int:
        """See `io.RawIOBase`."""
        while not self._output:
            if not self._input:
                self._input = self._file.read(_CHUNK_BYTES // 4)
            if not self._input:
                if self._frame is not None:
                    raise _DamagedStream("it ends in the middle of a frame")
                return 0
            self._decode()
        count = min(len(buffer), len(self._output))
        buffer[:count] = self._output[:count]
        self._output = self._output[count:]
        return count

    def _decode(self) -> None:
        if self._frame is None:
            self._frame = self._library.ZstdDecompressor().decompressobj()
        try:
            self._output = memoryview(self._frame.decompress(self._input))
        except self._library.ZstdError as error:
            raise _DamagedStream(str(error)) from error
        self._input = self._frame.unused_data if self._frame.eof else b""
        if self._frame.eof:
            self._frame = None


def _load_zstandard() -> Any:
    try:
        return importlib.import_module("zstandard")
    except ModuleNotFoundError as error:
        raise DataError(
            "reading .zst files needs the package zstandard", hint="pip install 'torchrelay[data]'"
        ) from error
