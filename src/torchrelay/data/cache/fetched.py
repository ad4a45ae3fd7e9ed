"""Shards fetched into memory: for stores of this process, and where a node's disk has no room."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection
from pathlib import Path
from tempfile import TemporaryDirectory

from torchrelay.data.cache.origin import Origin
from torchrelay.data.figures import Meter
from torchrelay.data.formats.unpack import unpack
from torchrelay.data.manifest import ShardEntry
from torchrelay.data.shard_bytes import damaged
from torchrelay.store.base import Buffer, Store

MOST_BYTES = 2**30
"""Kept in memory when nothing else is said; those longest unused are dropped and fetched anew."""

Release = Callable[[Collection[str] | None], None]
"""Asks those who keep shards open to let go of these (by sha256), or of all."""


class FetchedBytes:
    """Fetches shards whole, keeps the newest in memory. Thread-safe."""

    def __init__(
        self, store: Store, folder: str, indexes: Store, index_folder: str, *, most_bytes: int = MOST_BYTES
    ) -> None:
        """Keys are relative to `folder` of `store`, index files to `index_folder` of `indexes`."""
        origin = Origin(store, folder, indexes, index_folder)
        self.meter = Meter()
        self._memory = Memory(origin, self.meter, most_bytes=most_bytes)
        self._origin = origin

    def open(self, entry: ShardEntry) -> memoryview:
        """See `ShardBytes.open`."""
        return self._memory.open(entry)

    def tail(self, entry: ShardEntry, start: int) -> bytes:
        """See `ShardBytes.tail`."""
        return self._origin.tail(entry, start)

    def index(self, entry: ShardEntry) -> bytes | None:
        """See `ShardBytes.index`."""
        return self._origin.index(entry)


class Memory:
    """Whole shards in the memory of this process, at most so many bytes of them. Thread-safe."""

    def __init__(
        self,
        origin: Origin,
        meter: Meter,
        *,
        most_bytes: int = MOST_BYTES,
        release: Release = lambda hashes: None,
    ) -> None:
        """`release` is told which shards are no longer kept, so that others let go of them too."""
        self._origin = origin
        self._meter = meter
        self._most_bytes = most_bytes
        self._release = release
        self._kept: OrderedDict[str, bytes] = OrderedDict()
        self._fetching = threading.Lock()

    def open(self, entry: ShardEntry) -> memoryview:
        """All bytes of the shard, unpacked and checked; DataError that names it when it is damaged."""
        with self._fetching:
            data = self._kept.get(entry.sha256)
            if data is None:
                self._make_room(entry.disk_bytes)
                data = self._kept[entry.sha256] = self._fetch(entry)
            self._kept.move_to_end(entry.sha256)
        return memoryview(data)

    def _make_room(self, size: int) -> None:
        total = sum(map(len, self._kept.values()))
        dropped = []
        while self._kept and total + size > self._most_bytes:
            sha256, data = self._kept.popitem(last=False)
            total -= len(data)
            dropped.append(sha256)
        if dropped:
            self._release(dropped)

    def _fetch(self, entry: ShardEntry) -> bytes:
        sink = _MemorySink()
        bad = self._origin.fetch(entry, sink, self._meter)
        if bad is not None:
            raise damaged(self._origin.place, entry, bad.against(entry), adopted=self._origin.adopted)
        data = b"".join(sink.pieces)
        return data if entry.unpack is None else unpack_in_memory(entry, data)


class _MemorySink:
    def __init__(self) -> None:
        self.pieces: list[Buffer] = []

    def restart(self) -> None:
        self.pieces.clear()

    def write(self, data: Buffer) -> None:
        self.pieces.append(data)


def unpack_in_memory(entry: ShardEntry, data: bytes) -> bytes:
    """What the packed bytes of a shard hold; goes through a temporary folder."""
    if entry.unpack is None:
        return data
    with TemporaryDirectory(prefix="torchrelay-unpack-") as folder:
        source, target = Path(folder, "packed"), Path(folder, "unpacked")
        source.write_bytes(data)
        unpack(entry.unpack, source, target)
        return target.read_bytes()
