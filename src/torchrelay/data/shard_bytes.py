"""Where the bytes of shards come from: a port, and the plain case of files on this machine."""

import hashlib
import mmap
from pathlib import Path
from typing import Protocol

import xxhash

from torchrelay.core.errors import DataError, NotFoundError
from torchrelay.data.manifest import ShardEntry
from torchrelay.store.base import Store


class ShardBytes(Protocol):
    """Gives shards to those who read them. Thread-safe."""

    def open(self, entry: ShardEntry) -> memoryview:
        """All bytes of a shard in the form its samples are read from (unpacked), read-only and checked.

        Blocks until they are here. They stay valid as long as the view is kept, whatever happens to
        the file. DataError that names the shard when it is missing or damaged.
        """

    def tail(self, entry: ShardEntry, start: int) -> bytes:
        """The stored bytes from `start` to the end of the shard, unchecked; no need to fetch the rest."""

    def index(self, entry: ShardEntry) -> bytes | None:
        """The file that tells where the samples of the shard begin, or None where it has none."""


class LocalBytes:
    """Shards that lie in files of this machine and are read as they lie; checked at first open."""

    def __init__(self, store: Store, folder: str, indexes: Store, index_folder: str) -> None:
        """Keys are relative to `folder` of `store`, index files to `index_folder` of `indexes`.

        Adopted data lies beside no manifest, so its `folder` is empty.
        """
        self._store = store
        self._folder = folder
        self._adopted = not folder
        self._indexes = indexes
        self._index_folder = index_folder
        self._checked: set[tuple[str, int]] = set()

    def open(self, entry: ShardEntry) -> memoryview:
        """See `ShardBytes.open`."""
        key = join_key(self._folder, entry.key)
        path = self._store.local_path(key)
        if path is None:
            raise ValueError(f"{self._store.url} does not keep files on this machine")
        view = self._map(path, entry)
        if (entry.key, entry.start) not in self._checked:
            self._check(view, entry)
            self._checked.add((entry.key, entry.start))
        return view

    def tail(self, entry: ShardEntry, start: int) -> bytes:
        """See `ShardBytes.tail`."""
        key = join_key(self._folder, entry.key)
        try:
            return self._store.get(key, start=entry.start + start, length=entry.bytes - start)
        except NotFoundError as error:
            raise missing(self._place, entry, adopted=self._adopted) from error

    def index(self, entry: ShardEntry) -> bytes | None:
        """See `ShardBytes.index`."""
        return read_index(self._indexes, self._index_folder, entry)

    @property
    def _place(self) -> str:
        return join_key(self._store.url, self._folder)

    def _map(self, path: Path, entry: ShardEntry) -> memoryview:
        page = entry.start % mmap.ALLOCATIONGRANULARITY
        try:
            with path.open("rb") as file:
                mapped = mmap.mmap(
                    file.fileno(), entry.bytes + page, access=mmap.ACCESS_READ, offset=entry.start - page
                )
        except FileNotFoundError as error:
            raise missing(self._place, entry, adopted=self._adopted) from error
        except ValueError as error:  # an empty file cannot be mapped, nor one that is too short
            size = path.stat().st_size
            raise damaged(
                self._place,
                entry,
                f"the file has {size:,} bytes, the shard {entry.bytes:,} from {entry.start:,}",
                adopted=self._adopted,
            ) from error
        except OSError as error:
            raise DataError(f"cannot read {path}: {error.strerror}") from error
        return memoryview(mapped)[page:] if entry.start else memoryview(mapped)

    def _check(self, data: memoryview, entry: ShardEntry) -> None:
        got = xxhash.xxh3_128_hexdigest(data)
        why = ""
        if len(data) != entry.bytes:
            why = f"it has {len(data):,} bytes, the manifest says {entry.bytes:,}"
        elif got != entry.xxh3_128:
            why = f"its xxh3_128 is {got}, the manifest says {entry.xxh3_128}"
        if why:
            raise damaged(self._place, entry, why, adopted=self._adopted)


def join_key(folder: str, key: str) -> str:
    """`folder/key`, or `key` where the folder is the store itself."""
    return f"{folder}/{key}" if folder else key


def read_index(store: Store, folder: str, entry: ShardEntry) -> bytes | None:
    """The index file of a shard, checked against the hash in its name; DataError when it is damaged."""
    if entry.index is None:
        return None
    key = join_key(folder, entry.index)
    try:
        data = store.get(key)
    except NotFoundError as error:
        raise DataError(f"{store.url}/{key} is missing", hint="adopt the data again") from error
    digest = hashlib.sha256(data).hexdigest()
    if digest not in entry.index:
        raise DataError(f"{store.url}/{key} is damaged: its sha256 is {digest}", hint="adopt the data again")
    return data


def damaged(place: str, entry: ShardEntry, why: str, *, adopted: bool) -> DataError:
    """The shard is not what the manifest tells. `adopted`: it is a file of others, read where it lies."""
    return DataError(
        f"shard {entry.key} of {place} is damaged: {why}", hint=_hint("damaged", adopted=adopted)
    )


def missing(place: str, entry: ShardEntry, *, adopted: bool) -> DataError:
    """The shard is not there. `adopted`: it is a file of others, read where it lies."""
    return DataError(f"shard {entry.key} of {place} is missing", hint=_hint("missing", adopted=adopted))


ADOPT_AGAIN = "restore the file, or adopt the data again, which makes a new version"
"""What helps where a file of adopted data has changed: no build can write it anew."""


def _hint(state: str, *, adopted: bool) -> str:
    again = ADOPT_AGAIN if adopted else "building the dataset again from the same input writes the shard anew"
    return f"torchrelay data verify lists all that is {state}; {again}"
