"""The shards of one split, opened when first asked for, the longest unused closed when they are many."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from torchrelay.core.errors import DataError
from torchrelay.data.manifest import ShardEntry
from torchrelay.data.shard_bytes import ShardBytes

MOST_OPEN = 400
"""Shards of one split open at once: each may hold an open file, and a process may often have only 1024."""

Shard = TypeVar("Shard")
Decode = Callable[[memoryview, ShardEntry, bytes | None], Shard]
"""Turns the bytes of a shard, its entry and its index file into what is read; ValueError, KeyError or
TypeError when they do not fit."""


class OpenShards(Generic[Shard]):
    """Shards by their number in stored order. Thread-safe."""

    def __init__(self, source: ShardBytes, entries: Sequence[ShardEntry], decode: Decode[Shard]) -> None:
        self.source = source
        self.entries = entries
        """In stored order."""
        self._decode = decode
        self._open: OrderedDict[int, Shard] = OrderedDict()
        self._opening = threading.Lock()

    def __len__(self) -> int:
        return len(self.entries)

    def shard(self, number: int) -> Shard:
        """The shard; blocks until its bytes are here. DataError that names it when it is damaged."""
        found = self._open.get(number)
        if found is None:
            with self._opening:
                found = self._open.get(number) or self._open_shard(number)
        try:
            self._open.move_to_end(number)
        except KeyError:  # another thread has closed it since; we still hold it
            pass
        return found

    def _open_shard(self, number: int) -> Shard:
        entry = self.entries[number]
        try:
            shard = self._decode(self.source.open(entry), entry, self.source.index(entry))
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"shard {entry.key} is damaged: {error}",
                hint="torchrelay data verify lists all that is damaged",
            ) from error
        self._open[number] = shard
        if len(self._open) > MOST_OPEN:
            self._open.popitem(last=False)
        return shard
