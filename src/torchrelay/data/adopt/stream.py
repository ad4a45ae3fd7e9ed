"""The bytes of one shard, read once: hashed, counted, and handed on piece by piece."""

import hashlib
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import xxhash

from torchrelay.store.base import Store

PIECE_BYTES = 8 * 2**20
"""Fetched at once; a multiple of the size of every token."""

OnBytes = Callable[[int], None]
"""Called with the number of bytes that were read since the last call."""


class Stream:
    """Bytes [start, start + length) of an object. One thread."""

    def __init__(self, store: Store, key: str, start: int, length: int, on_bytes: OnBytes) -> None:
        self.key = key
        self.start = start
        self.length = length
        self._store = store
        self._on_bytes = on_bytes
        self._sha256 = hashlib.sha256()
        self._xxh3_128 = xxhash.xxh3_128()
        self._done = 0

    def pieces(self) -> Iterator[bytes]:
        """What has not been read yet, in order; ValueError when the object ends too early."""
        while self._done < self.length:
            wanted = min(PIECE_BYTES, self.length - self._done)
            piece = self._store.get(self.key, start=self.start + self._done, length=wanted)
            if len(piece) < wanted:
                end = self.start + self._done + len(piece)
                raise ValueError(
                    f"it ends at byte {end:,}; {self.start + self.length:,} were there when it was listed"
                )
            self._sha256.update(piece)
            self._xxh3_128.update(piece)
            self._done += wanted
            self._on_bytes(wanted)
            yield piece

    def tail(self, count: int) -> bytes:
        """The last bytes, at most `count`, ahead of all others and not hashed."""
        count = min(count, self.length)
        return self._store.get(self.key, start=self.start + self.length - count, length=count)

    @contextmanager
    def as_file(self) -> Iterator[Path]:
        """All of it as a file: the object itself where it is one, else a copy that is deleted afterwards."""
        path = self._store.local_path(self.key)
        if path is not None:
            self.drain()
            yield path
            return
        with tempfile.TemporaryDirectory(prefix="torchrelay-adopt-") as folder:
            path = Path(folder) / "shard"
            with path.open("wb") as file:
                for piece in self.pieces():
                    file.write(piece)
            yield path

    def drain(self) -> None:
        """Read what is left."""
        for _ in self.pieces():
            pass

    def hashes(self) -> tuple[str, str]:
        """sha256 and xxh3_128 of all of it, as hex digits; reads what is left."""
        self.drain()
        return self._sha256.hexdigest(), self._xxh3_128.hexdigest()


class PieceReader:
    """Takes a stream of pieces apart by counts of bytes."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._piece = b""
        self._at = 0
        """Place in the piece."""
        self._before = 0
        """Bytes of the pieces before it."""

    @property
    def position(self) -> int:
        """Bytes taken or skipped."""
        return self._before + self._at

    def take(self, count: int) -> bytes:
        """The next `count` bytes, fewer only at the end."""
        at, stop = self._at, self._at + count
        if stop <= len(self._piece):  # nearly always, and called for every header
            self._at = stop
            return self._piece[at:stop]
        parts = []
        while count > 0 and self._ready():
            part = self._piece[self._at : self._at + count]
            self._at += len(part)
            count -= len(part)
            parts.append(part)
        return b"".join(parts)

    def skip(self, count: int) -> int:
        """Leave `count` bytes out; how many there were."""
        left = count
        while left > 0 and self._ready():
            step = min(left, len(self._piece) - self._at)
            self._at += step
            left -= step
        return count - left

    def rest(self) -> Iterator[memoryview]:
        """What is left, in pieces."""
        while self._ready():
            at, self._at = self._at, len(self._piece)
            yield memoryview(self._piece)[at:]

    def _ready(self) -> bool:
        """Whether there is a byte left."""
        while self._at == len(self._piece):
            piece = next(self._pieces, None)
            if piece is None:
                return False
            self._before += self._at
            self._piece, self._at = piece, 0
        return True
