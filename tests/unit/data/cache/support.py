"""Shards of known bytes, and a store that misbehaves when it is told to."""

import hashlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import xxhash

from torchrelay.core.errors import NotFoundError
from torchrelay.data.cache.folder import Folder
from torchrelay.data.cache.node_cache import NodeCache
from torchrelay.data.cache.origin import Origin
from torchrelay.data.manifest import ShardEntry
from torchrelay.store.base import Buffer, Entry

SIZE = 1000


def content(number: int, size: int = SIZE) -> bytes:
    return (hashlib.sha256(str(number).encode()).digest() * (size // 32 + 1))[:size]


def entry_of(data: bytes, key: str, **more: object) -> ShardEntry:
    return ShardEntry(
        key=key,
        bytes=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
        xxh3_128=xxhash.xxh3_128_hexdigest(data),
        samples=10,
        **more,  # type: ignore[arg-type]
    )


class ToyStore:
    """Objects of this process; `before_get` may change what is answered, or raise."""

    url = "toy://store"
    piece_bytes = 2**20

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.gets: Counter[str] = Counter()
        self.answer: Callable[[str, bytes], bytes] = lambda key, data: data
        self._lock = threading.Lock()

    def get(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        with self._lock:
            self.gets[key] += 1
        if key not in self.objects:
            raise NotFoundError(f"{key} does not exist")
        stop = None if length is None else start + length
        return self.answer(key, self.objects[key])[start:stop]

    def stream(self, key: str, *, start: int = 0, length: int | None = None) -> Iterator[bytes]:
        data = self.get(key, start=start, length=length)
        for place in range(0, len(data), self.piece_bytes):
            yield data[place : place + self.piece_bytes]

    def put(self, key: str, data: Buffer, *, if_absent: bool = False) -> None:
        self.objects[key] = bytes(data)

    def list(self, prefix: str) -> Iterator[Entry]:
        yield from (Entry(key, len(data), 0.0) for key, data in sorted(self.objects.items()))

    def delete(self, key: str) -> None:
        self.objects.pop(key, None)

    def open_writer(self, key: str) -> None:
        raise NotImplementedError

    def local_path(self, key: str) -> Path | None:
        return None


def fill(store: ToyStore, count: int, size: int = SIZE) -> list[ShardEntry]:
    """`count` shards of `size` bytes in the store."""
    entries = []
    for number in range(count):
        store.objects[f"s{number}"] = content(number, size)
        entries.append(entry_of(content(number, size), f"s{number}"))
    return entries


def open_cache(store: ToyStore, root: Path, budget: int, warnings: list[str] | None = None) -> NodeCache:
    told: list[str] = [] if warnings is None else warnings
    return NodeCache(Origin(store, "", store, ""), Folder(root), lambda: budget, warn=told.append)


def shard_files(root: Path) -> list[Path]:
    return sorted(path for path in root.glob("??/*") if path.is_file())


def held_bytes(root: Path) -> int:
    """All that the folder holds on disk at this moment, but for plans and locks."""
    sizes = {}
    for path in [*root.glob("incoming/*"), *root.glob("??/*"), *root.glob("quarantine/*")]:
        with suppress(FileNotFoundError):
            status = path.stat()
            sizes[status.st_ino] = status.st_size
    return sum(sizes.values())


def leftovers(root: Path) -> list[str]:
    return sorted(path.name for path in (*root.glob("incoming/*"), *root.glob("plans/*")))
