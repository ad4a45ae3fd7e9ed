"""Shards fetched into memory: for stores of this process, and where a node's disk has no room."""

import threading
from collections import OrderedDict

import xxhash

from torchrelay.core.errors import NotFoundError
from torchrelay.data.manifest import ShardEntry
from torchrelay.data.shard_bytes import damaged, join_key, missing, read_index
from torchrelay.store.base import Store

MOST_BYTES = 2**30
"""Kept in memory when nothing else is said; those longest unused are dropped and fetched anew."""


class FetchedBytes:
    """Fetches shards whole, keeps the newest in memory. Thread-safe."""

    def __init__(
        self, store: Store, folder: str, indexes: Store, index_folder: str, *, most_bytes: int = MOST_BYTES
    ) -> None:
        """Keys are relative to `folder` of `store`, index files to `index_folder` of `indexes`."""
        self._store = store
        self._folder = folder
        self._indexes = indexes
        self._index_folder = index_folder
        self._most_bytes = most_bytes
        self._kept: OrderedDict[str, bytes] = OrderedDict()
        self._fetching = threading.Lock()

    def open(self, entry: ShardEntry) -> memoryview:
        """See `ShardBytes.open`."""
        with self._fetching:
            data = self._kept.get(entry.sha256)
            if data is None:
                data = self._kept[entry.sha256] = self._fetch(entry)
            self._kept.move_to_end(entry.sha256)
            while len(self._kept) > 1 and sum(map(len, self._kept.values())) > self._most_bytes:
                self._kept.popitem(last=False)
        return memoryview(data)

    def tail(self, entry: ShardEntry, start: int) -> bytes:
        """See `ShardBytes.tail`."""
        key = join_key(self._folder, entry.key)
        try:
            return self._store.get(key, start=entry.start + start, length=entry.bytes - start)
        except NotFoundError as error:
            raise missing(self._place, entry) from error

    def index(self, entry: ShardEntry) -> bytes | None:
        """See `ShardBytes.index`."""
        return read_index(self._indexes, self._index_folder, entry)

    @property
    def _place(self) -> str:
        return join_key(self._store.url, self._folder)

    def _fetch(self, entry: ShardEntry) -> bytes:
        data = self.tail(entry, 0)
        if len(data) != entry.bytes:
            raise damaged(
                self._place, entry, f"it has {len(data):,} bytes, the manifest says {entry.bytes:,}"
            )
        got = xxhash.xxh3_128_hexdigest(data)
        if got != entry.xxh3_128:
            raise damaged(self._place, entry, f"its xxh3_128 is {got}, the manifest says {entry.xxh3_128}")
        return data
