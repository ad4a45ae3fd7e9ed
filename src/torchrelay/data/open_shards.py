"""The shards of one split, opened when first asked for, the longest unused closed when they are many."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from typing import Generic, Protocol, TypeVar, runtime_checkable

from torchrelay.core.errors import DataError
from torchrelay.data.manifest import ShardEntry
from torchrelay.data.shard_bytes import ShardBytes

MOST_OPEN = 400
"""Shards of one split open at once: each may hold an open file, and a process may often have only 1024."""

Shard = TypeVar("Shard")
Decode = Callable[[memoryview, ShardEntry, bytes | None], Shard]
"""Turns the bytes of a shard, its entry and its index file into what is read; ValueError, KeyError or
TypeError when they do not fit."""


@runtime_checkable
class Releasing(Protocol):
    """A source that needs to have shards closed now and then, so that their room can be used."""

    def on_release(self, listener: Callable[[Collection[str] | None], None]) -> None:
        """Have `OpenShards.drop` called when that is so."""


class OpenShards(Generic[Shard]):
    """Shards by their number in stored order. Thread-safe."""

    def __init__(self, source: ShardBytes, entries: Sequence[ShardEntry], decode: Decode[Shard]) -> None:
        self.source = source
        self.entries = entries
        """In stored order."""
        self.decode = decode
        self._open: OrderedDict[int, Shard] = OrderedDict()
        self._opening = threading.Lock()
        if isinstance(source, Releasing):
            source.on_release(self.drop)

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

    def drop(self, hashes: Collection[str] | None) -> None:
        """Close these shards (by sha256), or all; one that is still read is there until that is done."""
        for number in list(self._open):
            if hashes is None or self.entries[number].sha256 in hashes:
                self._open.pop(number, None)

    def _open_shard(self, number: int) -> Shard:
        entry = self.entries[number]
        try:
            shard = self.decode(self.source.open(entry), entry, self.source.index(entry))
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"shard {entry.key} is damaged: {error}",
                hint="torchrelay data verify lists all that is damaged",
            ) from error
        self._open[number] = shard
        if len(self._open) > MOST_OPEN:
            self._open.popitem(last=False)
        return shard
