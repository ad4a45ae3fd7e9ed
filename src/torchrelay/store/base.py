"""What every store can do: bytes by key, behind a URL.

A key is a relative path with "/" between its parts (see `check_key`). A put is atomic: readers see the whole
object or none of it. `if_absent=True` is the one primitive that commits and claims are built
from: of several writers exactly one succeeds.

Safe from any thread. Not safe across fork: see `torchrelay.store.connection`.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple, Protocol

from torchrelay.core.errors import StoreError

Buffer = bytes | bytearray | memoryview


class Entry(NamedTuple):
    """One object as a listing shows it."""

    key: str
    size: int
    """Bytes."""
    modified_s: float
    """Unix time of the last write, by the store's clock."""


class Writer(Protocol):
    """A sink for one object that appears only when its context ends without an error."""

    def write(self, data: Buffer) -> None:
        """Append bytes."""


class Store(Protocol):
    """Bytes by key. Errors: NotFoundError, AlreadyExistsError, StoreError; OSError when a disk is full."""

    @property
    def url(self) -> str:
        """Where it is, without secrets; opening it again gives the same store."""

    def put(self, key: str, data: Buffer, *, if_absent: bool = False) -> None:
        """Write one object durably; with `if_absent`, fail when the key is taken."""

    def get(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        """Bytes [start, start + length) of an object, or all of it; fewer where it ends before that."""

    def stream(self, key: str, *, start: int = 0, length: int | None = None) -> Iterator[Buffer]:
        """What `get` returns, piece by piece as it comes: the cheapest way to read much.

        Errors come while the pieces are taken, and a NotFoundError before the first.
        """

    def list(self, prefix: str) -> Iterator[Entry]:
        """Objects whose key lies under the folder `prefix` ("" for all), sorted by key."""

    # A class that has a method `list` cannot name the type so.
    def list_folders(self, prefix: str) -> Sequence[str]:
        """Names of the folders right under the folder `prefix`, sorted; walks none of them."""

    def delete(self, key: str) -> None:
        """Remove an object; an absent one is no error."""

    def open_writer(self, key: str) -> AbstractContextManager[Writer]:
        """Stream one large object; durable and visible when the context ends, absent if it raises."""

    def local_path(self, key: str) -> Path | None:
        """The object as a file on this machine, where the store keeps it as one; else None."""


TEMPORARY_MARK = ".writing-"
"""Part of the name of a file that is not complete; no key contains it."""


def check_key(key: str) -> str:
    """`key` itself if it is one; StoreError when it is empty, absolute, or climbs out of the store."""
    if any(part in ("", ".", "..") for part in key.split("/")) or "\0" in key or TEMPORARY_MARK in key:
        raise StoreError(
            f"{key!r} is not a key", hint='write a relative path such as "runs/my-run/recipe.yaml"'
        )
    return key


def check_prefix(prefix: str) -> str:
    """`prefix` of a listing without its final "/": a key, or empty for the whole store."""
    prefix = prefix.removesuffix("/")
    return check_key(prefix) if prefix else ""
