"""How the node's folder is laid out, and what lies in it.

    <folder>/<aa>/<name>                         a complete shard; <aa> are its first two digits
    <folder>/incoming/<name>.<bytes>.<pid>-<x>   being fetched: so many bytes are kept free for it
    <folder>/incoming/….unpacked                 the same, being unpacked
    <folder>/plans/                              what live processes still need (see `plan_file`)
    <folder>/quarantine/                         bytes that were wrong three times, for people to look at
    <folder>/ledger.lock                         held by whoever adds or removes a file

A file being fetched is locked by its process: an unlocked one is dead and goes. `<name>` is the
shard's sha256, with the way it was unpacked behind a "-" where it was.
"""

import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from torchrelay.data.cache.lock import try_lock, unlock
from torchrelay.data.cache.victim import Ints, Keys, Shelved
from torchrelay.data.manifest import ShardEntry
from torchrelay.store.base import Buffer

UNPACKED = ".unpacked"
_RACY_NS = 100_000_000
"""A folder may change again without another time of change within the tick of the kernel's clock."""


class Folder:
    """Paths below the node's folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.incoming = root / "incoming"
        self.plans = root / "plans"
        self.quarantine = root / "quarantine"
        self.ledger = root / "ledger.lock"

    def make(self) -> None:
        """Create what is missing; OSError when that cannot be."""
        for folder in (self.incoming, self.plans):
            folder.mkdir(parents=True, exist_ok=True)

    def path(self, name: str) -> Path:
        """Where the complete shard is, or would be."""
        return self.root / name[:2] / name


def shard_name(entry: ShardEntry) -> str:
    """Name of the shard's file."""
    return f"{entry.sha256}-{entry.unpack}" if entry.unpack else entry.sha256


def shard_key(name: str) -> int:
    """The first 64 bits of the hash; what plans call a shard by."""
    return int(name[:16], 16)


class Incoming:
    """A file being fetched, locked by this process; one thread at a time."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.descriptor = descriptor

    @property
    def unpacked(self) -> Path:
        """The file that it is unpacked into, if it is."""
        return self.path.with_name(self.path.name + UNPACKED)

    def restart(self) -> None:
        """Begin anew."""
        os.ftruncate(self.descriptor, 0)
        os.lseek(self.descriptor, 0, os.SEEK_SET)

    def write(self, data: Buffer) -> None:
        """Append; OSError when the disk is full."""
        view = memoryview(data)
        while view:
            view = view[os.write(self.descriptor, view) :]

    def close(self) -> None:
        """Remove what is left of it; harmless when it has become a shard."""
        self.unpacked.unlink(missing_ok=True)
        self.path.unlink(missing_ok=True)
        unlock(self.descriptor)
        os.close(self.descriptor)


def create_incoming(folder: Folder, name: str, size: int) -> Incoming:
    """Keep `size` bytes free for a shard; the ledger's lock must be held."""
    path = folder.incoming / f"{name}.{size}.{os.getpid()}-{uuid.uuid4().hex[:12]}"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try_lock(descriptor, exclusive=True)
    return Incoming(path, descriptor)


class Arriving(NamedTuple):
    """A file that a live process is fetching."""

    path: Path
    name: str
    kept: int
    """Bytes that are counted for it."""
    written: int

    @property
    def holder(self) -> str:
        """Process id of who fetches it."""
        return self.path.name.rpartition(".")[2].partition("-")[0]


def list_arriving(folder: Folder) -> list[Arriving]:
    """What is being fetched; files of dead processes are removed. The ledger's lock must be held."""
    found = [path for path in _paths(folder.incoming) if not path.name.endswith(UNPACKED)]
    alive = [arriving for path in found if (arriving := _look_at(path)) is not None]
    living = {arriving.path.name for arriving in alive}
    for path in _paths(folder.incoming):
        if path.name.endswith(UNPACKED) and path.name.removesuffix(UNPACKED) not in living:
            path.unlink(missing_ok=True)
    return alive


def _look_at(path: Path) -> Arriving | None:
    name, _, rest = path.name.partition(".")
    size = rest.partition(".")[0]
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        if try_lock(descriptor, exclusive=True) or not size.isdigit():
            path.unlink(missing_ok=True)
            return None
        written = os.fstat(descriptor).st_size + _size(path.with_name(path.name + UNPACKED))
    finally:
        os.close(descriptor)
    return Arriving(path, name, max(int(size), written), written)


class _Part(NamedTuple):
    """One of the folders <aa> as it was found."""

    stamp: tuple[int, int]
    """Inode and time of its last change."""
    is_final: bool
    """Whether a later change is sure to change the stamp."""
    paths: tuple[str, ...]
    keys: Keys
    sizes: Ints
    used_s: np.ndarray[tuple[int], np.dtype[np.float64]]


class Shelf(NamedTuple):
    """All complete shards, and what is in quarantine."""

    paths: list[str]
    files: Shelved


class Inventory:
    """The complete shards, exactly; looks again only into folders that changed. One thread at a time."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._parts: dict[Path, _Part] = {}

    def look(self) -> Shelf:
        """What is there now."""
        parts = {path: self._part(path) for path in self._folders()}
        self._parts = {path: part for path, part in parts.items() if part is not None}
        found = list(self._parts.values())
        keys = np.concatenate([_no_keys(), *(part.keys for part in found)])
        files = Shelved(
            keys=keys,
            sizes=np.concatenate([_no_sizes(), *(part.sizes for part in found)]),
            used_s=np.concatenate([np.zeros(0), *(part.used_s for part in found)]),
            in_use=np.zeros(keys.size, dtype=np.bool_),
        )
        return Shelf([path for part in found for path in part.paths], files)

    def _folders(self) -> Iterator[Path]:
        yield from (path for path in _paths(self._folder.root) if len(path.name) == 2)
        yield self._folder.quarantine

    def _part(self, path: Path) -> _Part | None:
        try:
            status = path.stat()
            known = self._parts.get(path)
            stamp = (status.st_ino, status.st_mtime_ns)
            if known is not None and known.is_final and known.stamp == stamp:
                return known
            return _read_part(path, stamp)
        except (FileNotFoundError, NotADirectoryError):
            return None


def _read_part(path: Path, stamp: tuple[int, int]) -> _Part:
    is_final = stamp[1] < time.time_ns() - _RACY_NS
    paths, keys, sizes, used = [], [], [], []
    with os.scandir(path) as entries:
        for entry in entries:
            status = entry.stat(follow_symlinks=False)
            paths.append(entry.path)
            keys.append(_key_of(entry.name))
            sizes.append(status.st_size)
            used.append(status.st_mtime)
    return _Part(
        stamp,
        is_final,
        tuple(paths),
        np.array(keys, dtype=np.uint64),
        np.array(sizes, dtype=np.int64),
        np.array(used, dtype=np.float64),
    )


def _key_of(name: str) -> int:
    try:
        return shard_key(name)
    except ValueError:  # a stranger's file: counted, needed by nobody
        return 0


def _paths(folder: Path) -> list[Path]:
    try:
        return [folder / name for name in os.listdir(folder)]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _no_keys() -> Keys:
    return np.zeros(0, dtype=np.uint64)


def _no_sizes() -> Ints:
    return np.zeros(0, dtype=np.int64)
