"""Who may put how many bytes into the node's folder: the budget is kept before a byte is fetched.

Nothing is written down that could be wrong after a crash: the folder itself is the account. All
that adds or removes a file happens under one lock, so no two processes count the same room.
"""

import errno
import math
import os
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from torchrelay.data.cache.folder import (
    Arriving,
    Folder,
    Incoming,
    Inventory,
    Shelf,
    create_incoming,
    list_arriving,
)
from torchrelay.data.cache.lock import hold, is_same, try_lock, unlock
from torchrelay.data.cache.plan_file import PlanFile, PlanShelf, write_plan
from torchrelay.data.cache.victim import Uses, choose_victims
from torchrelay.data.figures import Meter

LEDGER_PATIENCE_S = 60.0
"""How long the ledger may be held by others before a shard is read past the cache instead."""
MOST_QUARANTINED = 4
"""Files kept for people to look at; older ones go."""
_SOON_S = 10.0

Due = Callable[[], float]
"""Seconds until the shard is needed, asked once the ledger is held."""


class NoRoomError(OSError):
    """Everything in the folder is in use or needed sooner."""

    def __init__(self, missing: int, folder: Path) -> None:
        super().__init__(errno.ENOSPC, f"{missing:,} bytes are missing in {folder}: all else is in use")


class Busy(NamedTuple):
    """Somebody else is fetching it."""

    arriving: Arriving


def now_due() -> float:
    """A reader waits for the shard."""
    return -math.inf


class Ledger:
    """The room in the folder. OSError where the folder cannot be used. Safe from any thread."""

    def __init__(self, folder: Folder, budget: Callable[[], int], meter: Meter) -> None:
        """`budget`: most bytes in the folder."""
        self._folder = folder
        self._budget = budget
        self._meter = meter
        self._inventory = Inventory(folder)
        self._plans = PlanShelf()
        self._mutex = threading.Lock()
        """Threads of this process queue up here instead of asking the kernel again and again."""

    def reserve(
        self, name: str, size: int, due: Due = now_due, *, shortage: int = 0
    ) -> Incoming | Busy | None:
        """Keep room for a shard of `size` bytes; None when it is there already.

        Evicts what is needed later than it, `shortage` bytes at least (when the disk has just refused
        a write). NoRoomError when that does not suffice.
        """
        with self._held():
            if self._folder.path(name).exists():
                return None
            arriving = list_arriving(self._folder)
            for other in arriving:
                if other.name == name:
                    return Busy(other)
            self._make_room(size, arriving, due, shortage)
            return create_incoming(self._folder, name, size)

    def enlarge(self, incoming: Incoming, name: str, size: int) -> None:
        """Count `size` bytes for a file that turns out larger than was kept for it."""
        with self._held():
            others = [one for one in list_arriving(self._folder) if one.path != incoming.path]
            self._make_room(size, others, now_due, 0)
            path = incoming.path.with_name(f"{name}.{size}.{incoming.path.name.rpartition('.')[2]}")
            unpacked = incoming.unpacked
            incoming.path.rename(path)
            incoming.path = path
            with suppress(FileNotFoundError):
                unpacked.rename(incoming.unpacked)

    def commit(self, incoming: Incoming, source: Path, name: str) -> None:
        """Make a fetched file the shard: `source` is the file, or what it was unpacked into."""
        path = self._folder.path(name)
        with self._held():
            path.parent.mkdir(exist_ok=True)
            unlock(incoming.descriptor)  # readers are let in the moment it has its name
            os.replace(source, path)

    def quarantine(self, source: Path, name: str) -> Path | None:
        """Keep wrong bytes for people to look at; None when that cannot be."""
        folder = self._folder.quarantine
        try:
            with self._held():
                folder.mkdir(exist_ok=True)
                kept = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime)
                for path in kept[: max(0, len(kept) - MOST_QUARANTINED + 1)]:
                    path.unlink()
                target = folder / f"{name}.{uuid.uuid4().hex[:8]}"
                os.replace(source, target)
        except OSError:
            return None
        return target

    def remove(self, name: str, descriptor: int) -> None:
        """Take a damaged shard away, unless another file has its name by now."""
        with suppress(OSError), self._held():
            path = self._folder.path(name)
            if is_same(path, descriptor):
                path.unlink()

    def publish(self, uses: Uses, old: PlanFile | None = None) -> PlanFile:
        """Tell all processes of the node what this one needs, instead of `old`."""
        with self._held():
            plan = write_plan(self._folder.plans, uses)
            if old is not None:
                old.close()
            return plan

    def look(self) -> Shelf:
        """All complete shards; files and plans of dead processes are removed."""
        with self._held():
            list_arriving(self._folder)
            self._plans.read(self._folder.plans)
            return self._inventory.look()

    @contextmanager
    def _held(self) -> Iterator[None]:
        if not self._mutex.acquire(timeout=LEDGER_PATIENCE_S):
            raise TimeoutError(f"another thread has held {self._folder.ledger} too long")
        try:
            self._folder.make()
            with hold(self._folder.ledger, LEDGER_PATIENCE_S):
                yield
        finally:
            self._mutex.release()

    def _make_room(self, size: int, arriving: list[Arriving], due: Due, shortage: int) -> None:
        shelf = self._inventory.look()
        files = shelf.files
        kept = sum(other.kept for other in arriving)
        pending = sum(other.kept - other.written for other in arriving)
        needed = max(
            int(files.sizes.sum()) + kept + size - self._budget(),
            size + pending - free_bytes(self._folder.root),
            shortage,
        )
        if needed <= 0:
            return
        due_s, plans = due(), self._plans.read(self._folder.plans)
        while needed > 0:
            choice = choose_victims(files, plans, needed, due_s=due_s)
            if choice.missing:
                self._ask_for_room(due_s)
                raise NoRoomError(choice.missing, self._folder.root)
            in_use = files.in_use.copy()
            for victim in choice.victims.tolist():
                in_use[victim] = True  # gone or not, it is not chosen twice
                if self._evict(shelf.paths[victim]):
                    needed -= int(files.sizes[victim])
            files = files._replace(in_use=in_use)

    def _evict(self, path: str) -> bool:
        """Remove a shard unless somebody reads it."""
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return True
        try:
            if not try_lock(descriptor, exclusive=True):
                return False
            os.unlink(path)
        finally:
            os.close(descriptor)
        self._meter.add(evictions=1)
        return True

    def _ask_for_room(self, due_s: float) -> None:
        """Those who keep shards open that they need no longer look at this time."""
        if due_s < _SOON_S:
            os.utime(self._folder.ledger)

    def pressure(self) -> float:
        """When room was last missing, unix time; 0.0 where the folder cannot be looked at."""
        try:
            return self._folder.ledger.stat().st_mtime
        except OSError:
            return 0.0


def free_bytes(folder: Path) -> int:
    """Bytes that may still be written to the disk of an existing folder."""
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize
