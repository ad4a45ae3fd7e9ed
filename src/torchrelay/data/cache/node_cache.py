"""The shards of a dataset on the node's disk: fetched once for all processes, checked, bounded.

A shard that is read stays mapped from a file that its reader has locked, so nobody removes it.
Where the folder has no room, is full or read-only, or where another process hangs while it fetches,
the shard is read through memory instead and people are told: that costs speed, never a wrong byte.

Safe from any thread. Not to be used across a fork.
"""

import mmap
import os
import time
import warnings
from collections.abc import Callable, Collection
from contextlib import suppress

import xxhash

from torchrelay.data.cache.carrier import Carrier, Stopped
from torchrelay.data.cache.fetched import MOST_BYTES, Memory
from torchrelay.data.cache.folder import Arriving, Folder, shard_name
from torchrelay.data.cache.ledger import Due, Ledger, now_due
from torchrelay.data.cache.lock import try_lock
from torchrelay.data.cache.origin import TRIES, Origin
from torchrelay.data.cache.room import CHECK_BYTES
from torchrelay.data.cache.watch import watch_pressure
from torchrelay.data.figures import Meter
from torchrelay.data.manifest import ShardEntry

ROOM_PATIENCE_S = 1.0
"""How long a reader waits for others to let go of shards they need no longer."""
_WARN_EVERY_S = 60.0
_TOUCH_EVERY_S = 60.0


def warn_people(text: str) -> None:
    """Tell whoever watches the process."""
    warnings.warn(text, RuntimeWarning, stacklevel=2)


class NodeCache:
    """See the head of the file."""

    def __init__(
        self,
        origin: Origin,
        folder: Folder,
        budget: Callable[[], int],
        *,
        meter: Meter | None = None,
        warn: Callable[[str], None] = warn_people,
    ) -> None:
        """`budget`: most bytes of the folder. Touches no file until a shard is asked for."""
        self.meter = meter or Meter()
        self.budget = budget
        self.ledger = Ledger(folder, budget, self.meter)
        self.is_planned = False
        """Whether somebody lets go of shards at the right time, so that pressure need not be watched."""
        self.urgent: Due = now_due
        """How soon that is needed which a reader waits for."""
        self._carrier = Carrier(origin, self.ledger, self.meter)
        self._origin = origin
        self._folder = folder
        self._warn = warn
        self._memory = Memory(origin, self.meter, most_bytes=MOST_BYTES, release=self.release)
        self._listeners: list[Callable[[Collection[str] | None], None]] = []
        self._warned_s = -_WARN_EVERY_S
        self._is_short = False

    def open(self, entry: ShardEntry) -> memoryview:
        """See `ShardBytes.open`; the file cannot be removed as long as the view is kept."""
        view = self._open_here(entry)
        if view is not None:
            self.meter.add(hits=1)
            return view
        began = time.perf_counter()
        try:
            return self._open_missing(entry)
        finally:
            self.meter.add(misses=1, waited_seconds=time.perf_counter() - began)

    def tail(self, entry: ShardEntry, start: int) -> bytes:
        """See `ShardBytes.tail`."""
        return self._origin.tail(entry, start)

    def index(self, entry: ShardEntry) -> bytes | None:
        """See `ShardBytes.index`."""
        return self._origin.index(entry)

    def bring(self, entry: ShardEntry, due: Due, stopped: Stopped) -> Arriving | None:
        """See `Carrier.bring`."""
        return self._carrier.bring(entry, due, stopped)

    def bring_or_wait(self, entry: ShardEntry) -> None:
        """See `Carrier.bring_or_wait`."""
        patience_s = 0 if self._is_short else ROOM_PATIENCE_S
        self._carrier.bring_or_wait(entry, self.urgent, lambda: self.release(None), patience_s)

    def on_release(self, listener: Callable[[Collection[str] | None], None]) -> None:
        """Have those called who keep shards open, when they are to let go of some (None: of all)."""
        if not self._listeners:
            watch_pressure(self)
        self._listeners.append(listener)

    def release(self, hashes: Collection[str] | None) -> None:
        """Ask all who keep shards of this cache open to let go of these (by sha256), or of all."""
        for listener in self._listeners:
            listener(hashes)

    def _open_here(self, entry: ShardEntry) -> memoryview | None:
        """The shard if it is in the folder and intact; a damaged one is removed."""
        try:
            descriptor = os.open(self._folder.path(shard_name(entry)), os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            return self._map(descriptor, entry)
        except OSError:
            return None
        finally:
            os.close(descriptor)

    def _map(self, descriptor: int, entry: ShardEntry) -> memoryview | None:
        if not try_lock(descriptor, exclusive=False):
            return None  # somebody has just chosen it to go
        status, name = os.fstat(descriptor), shard_name(entry)
        if status.st_nlink == 0:
            return None
        view = map_file(descriptor, status.st_size)
        if self._carrier.checked.get(name) != status.st_ino:
            if not is_intact(view, entry):
                self.ledger.remove(name, descriptor)
                self.meter.add(refetched=1)
                return None
            self._carrier.checked[name] = status.st_ino
        if status.st_mtime < time.time() - _TOUCH_EVERY_S:
            with suppress(OSError):
                os.utime(descriptor)
        return view[:-CHECK_BYTES] if entry.unpack else view

    def _open_missing(self, entry: ShardEntry) -> memoryview:
        for _ in range(TRIES):
            try:
                self.bring_or_wait(entry)
            except OSError as error:
                return self._open_past(entry, str(error))
            view = self._open_here(entry)
            if view is not None:
                self._is_short = False
                return view
        return self._open_past(entry, f"it was fetched {TRIES} times and did not stay")

    def _open_past(self, entry: ShardEntry, why: str) -> memoryview:
        self._is_short = True
        self.meter.add(in_memory=1)
        if time.monotonic() - self._warned_s >= _WARN_EVERY_S:
            self._warned_s = time.monotonic()
            self._warn(f"shard {entry.key} is read past the cache {self._folder.root}, which is slow: {why}")
        return self._memory.open(entry)


def map_file(descriptor: int, size: int) -> memoryview:
    """The file's bytes, read-only; they stay, and the file stays locked, as long as the view is kept."""
    return memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)) if size else memoryview(b"")


def is_intact(view: memoryview, entry: ShardEntry) -> bool:
    """Whether the bytes on disk are what was written."""
    if entry.unpack is None:
        return len(view) == entry.bytes and xxhash.xxh3_128_hexdigest(view) == entry.xxh3_128
    return xxhash.xxh3_128_digest(view[:-CHECK_BYTES]) == view[-CHECK_BYTES:]
