"""What a process will need, written down for the others of the node.

`plans/<process id>-<random>` holds one plan, locked while its process lives: an unlocked one is dead.
All whole numbers little-endian:

    8 bytes magic | i64 now | f64 slots a second | i64 uses | u64 keys | i64 first | i64 last

Only `now` and the speed change later, in place. Files are made and removed under the ledger's lock.
"""

import os
import struct
import threading
import uuid
from contextlib import suppress
from pathlib import Path

import numpy as np

from torchrelay.data.cache.lock import is_locked, try_lock
from torchrelay.data.cache.victim import Uses

_MAGIC = b"trplan01"
_HEAD = struct.Struct("<8sqdq")
_MOVING = struct.Struct("<qd")


class PlanFile:
    """The plan of this process. Safe from any thread."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor
        self._is_open = True
        self._lock = threading.Lock()

    def move(self, now: int, slots_per_s: float) -> None:
        """Tell where this process stands; nothing when the plan was taken back."""
        with self._lock:
            if self._is_open:  # the number of a closed descriptor may be another file's by now
                os.pwrite(self._descriptor, _MOVING.pack(now, slots_per_s), len(_MAGIC))

    def is_there(self) -> bool:
        """False when the plan was taken back, or somebody deleted the file."""
        with self._lock:
            return self._is_open and os.fstat(self._descriptor).st_nlink > 0

    def close(self) -> None:
        """Take the plan back."""
        with self._lock:
            if self._is_open:
                self._is_open = False
                with suppress(OSError):
                    self._path.unlink(missing_ok=True)
                os.close(self._descriptor)


def write_plan(folder: Path, uses: Uses) -> PlanFile:
    """Publish a plan; the ledger's lock must be held."""
    path = folder / f"{os.getpid()}-{uuid.uuid4().hex}"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        try_lock(descriptor, exclusive=True)
        head = _HEAD.pack(_MAGIC, uses.now, uses.slots_per_s, uses.keys.size)
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(head + uses.keys.tobytes() + uses.first.tobytes() + uses.last.tobytes())
    except BaseException:
        path.unlink(missing_ok=True)
        os.close(descriptor)
        raise
    return PlanFile(path, descriptor)


class PlanShelf:
    """The plans of all live processes of the node. Remembers what cannot change."""

    def __init__(self) -> None:
        self._known: dict[str, Uses] = {}

    def read(self, folder: Path) -> list[Uses]:
        """Every plan whose process lives; those of the dead are removed. The ledger's lock must be held."""
        alive = {name: folder / name for name in _names(folder) if self._lives(folder / name)}
        self._known = {name: uses for name, uses in self._known.items() if name in alive}
        return [uses for name, path in alive.items() if (uses := self._uses(name, path)) is not None]

    def _lives(self, path: Path) -> bool:
        try:
            if is_locked(path):
                return True
        except FileNotFoundError:
            return False
        path.unlink(missing_ok=True)
        return False

    def _uses(self, name: str, path: Path) -> Uses | None:
        try:
            known = self._known.get(name) or _parse(path.read_bytes())
            with path.open("rb") as file:
                now, speed = _MOVING.unpack(file.read(_HEAD.size)[len(_MAGIC) : len(_MAGIC) + _MOVING.size])
        except (FileNotFoundError, ValueError, struct.error):
            return None
        self._known[name] = known
        return known._replace(now=now, slots_per_s=speed)


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []


def _parse(data: bytes) -> Uses:
    magic, now, speed, count = _HEAD.unpack_from(data)
    if magic != _MAGIC:
        raise ValueError("not a plan")
    columns = np.frombuffer(data, np.uint64, 3 * count, _HEAD.size).reshape(3, count)
    return Uses(columns[0], columns[1].view(np.int64), columns[2].view(np.int64), now, speed)
