"""Where shards come from: spans of objects in a store, fetched in pieces and checked as they come."""

import hashlib
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

from torchrelay.core.errors import NotFoundError
from torchrelay.data.figures import Meter
from torchrelay.data.manifest import ShardEntry
from torchrelay.data.shard_bytes import join_key, missing, read_index
from torchrelay.store.base import Buffer, Store

TRIES = 3
"""Fetches of one shard before its bytes count as bad."""


class Sink(Protocol):
    """Takes the bytes of one shard."""

    def restart(self) -> None:
        """Forget what was written."""

    def write(self, data: Buffer) -> None:
        """Append."""


class BadBytes(NamedTuple):
    """What came instead of a shard, every time it was fetched."""

    sha256: str
    bytes: int

    def against(self, entry: ShardEntry) -> str:
        """The difference in words."""
        if self.bytes != entry.bytes:
            return f"fetched {TRIES} times, it has {self.bytes:,} bytes; the manifest says {entry.bytes:,}"
        return f"fetched {TRIES} times, its sha256 is {self.sha256}; the manifest says {entry.sha256}"


class FetchStoppedError(OSError):
    """The fetch was given up because nobody wants it any more."""


class Origin:
    """The shards of one dataset in its store. Safe from any thread."""

    def __init__(self, store: Store, folder: str, indexes: Store, index_folder: str) -> None:
        """Keys are relative to `folder` of `store`, index files to `index_folder` of `indexes`."""
        self._store = store
        self._folder = folder
        self._indexes = indexes
        self._index_folder = index_folder

    @property
    def adopted(self) -> bool:
        """Whether the shards are files of others: those lie beside no manifest, in no folder of ours."""
        return not self._folder

    @property
    def place(self) -> str:
        """For messages."""
        return join_key(self._store.url, self._folder) if self._folder else self._store.url

    def tail(self, entry: ShardEntry, start: int) -> bytes:
        """See `ShardBytes.tail`."""
        key = join_key(self._folder, entry.key)
        try:
            return self._store.get(key, start=entry.start + start, length=entry.bytes - start)
        except NotFoundError as error:
            raise missing(self.place, entry, adopted=self.adopted) from error

    def index(self, entry: ShardEntry) -> bytes | None:
        """See `ShardBytes.index`."""
        return read_index(self._indexes, self._index_folder, entry)

    def fetch(
        self, entry: ShardEntry, sink: Sink, meter: Meter, stopped: Callable[[], bool] = lambda: False
    ) -> BadBytes | None:
        """Write the shard's bytes to `sink`, checked against size and sha256; None when they are right.

        Wrong bytes are fetched anew. Errors of the store and of the sink pass through; so does
        FetchStoppedError once `stopped` says so.
        """
        bad = None
        for _ in range(TRIES):
            sink.restart()
            began = time.perf_counter()
            got = BadBytes(*self._copy(entry, sink, meter, stopped))
            meter.add(fetches=1, fetch_seconds=time.perf_counter() - began)
            if got == (entry.sha256, entry.bytes):
                return None
            bad = got
            meter.add(refetched=1)
        return bad

    def _copy(
        self, entry: ShardEntry, sink: Sink, meter: Meter, stopped: Callable[[], bool]
    ) -> tuple[str, int]:
        digest, size = hashlib.sha256(), 0
        for piece in self._pieces(entry):
            meter.add(fetched_bytes=len(piece))
            digest.update(piece)
            sink.write(piece)
            size += len(piece)
            if stopped():
                raise FetchStoppedError("stopped")
        return digest.hexdigest(), size

    def _pieces(self, entry: ShardEntry) -> Iterator[Buffer]:
        key = join_key(self._folder, entry.key)
        try:
            yield from self._store.stream(key, start=entry.start, length=entry.bytes)
        except NotFoundError as error:
            raise missing(self.place, entry, adopted=self.adopted) from error
