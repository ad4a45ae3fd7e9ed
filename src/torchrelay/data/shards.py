"""The file format of a shard of tokens: reading, checking, taking apart. Thread-safe where it says so.

tokens        little-endian u16 or u32, from byte 0, filled with zeros to a multiple of 8 bytes
ends          u64 [documents]: position after each document's end mark
labels        i32 [documents], only where documents have labels
trailer       JSON: format, token_dtype, tokens, documents, labels, continues
last 12 bytes u32 length of the trailer, then the magic
"""

import json
import mmap
import struct
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from torchrelay.core.errors import DataError, NotFoundError
from torchrelay.data.manifest import ShardEntry, TokenDtype
from torchrelay.store.base import Buffer, Store

MAGIC = b"RELAYTOK"
FORMAT = 1
MOST_MAPPED = 400
"""Shards of one split mapped at once: each holds an open file, and a process may often have only 1024."""

_NUMPY_TYPES: dict[str, str] = {"u16": "<u2", "u32": "<u4"}
_TAIL = struct.Struct("<I8s")


class Shard(NamedTuple):
    """The arrays of one shard, read-only views of its bytes."""

    tokens: NDArray[np.unsignedinteger[Any]]
    """u16 or u32 [tokens]."""
    ends: NDArray[np.uint64]
    """Position after the end mark of every document that ends here, [documents]."""
    labels: NDArray[np.int32] | None
    """Class of each of those documents, or None where documents have no label."""
    continues: bool
    """Whether the first tokens belong to a document that began in the shard before."""


class Footer(NamedTuple):
    """What stands behind the tokens."""

    tokens: int
    token_dtype: TokenDtype
    ends: NDArray[np.uint64]
    labels: NDArray[np.int32] | None
    continues: bool


def numpy_type(token_dtype: TokenDtype) -> "np.dtype[np.unsignedinteger[Any]]":
    """How numpy names the type of a token in a file."""
    return np.dtype(_NUMPY_TYPES[token_dtype])


def encode_footer(footer: Footer) -> bytes:
    """All bytes that follow the tokens, the zeros in between included."""
    trailer = {
        "format": FORMAT,
        "token_dtype": footer.token_dtype,
        "tokens": footer.tokens,
        "documents": len(footer.ends),
        "labels": footer.labels is not None,
        "continues": footer.continues,
    }
    token_bytes = footer.tokens * numpy_type(footer.token_dtype).itemsize
    text = json.dumps(trailer, sort_keys=True).encode()
    parts = [
        bytes(-token_bytes % 8),
        footer.ends.astype("<u8").tobytes(),
        b"" if footer.labels is None else footer.labels.astype("<i4").tobytes(),
        text,
        _TAIL.pack(len(text), MAGIC),
    ]
    return b"".join(parts)


def footer_start(tokens: int, token_bytes: int) -> int:
    """Byte at which the footer begins."""
    return -(-tokens * token_bytes // 8) * 8


def parse_footer(tail: Buffer) -> Footer:
    """The footer in the bytes from `footer_start` on; ValueError that says what is wrong."""
    view = memoryview(tail)
    if len(view) < _TAIL.size:
        raise ValueError(f"only {len(view)} bytes stand behind the tokens")
    length, magic = _TAIL.unpack(view[-_TAIL.size :])
    if magic != MAGIC:
        raise ValueError(f"it ends with {magic!r}, not with {MAGIC!r}")
    stop = len(view) - _TAIL.size - length
    if stop < 0:
        raise ValueError(f"a trailer of {length} bytes does not fit")
    trailer = json.loads(bytes(view[stop : len(view) - _TAIL.size]))
    if trailer["format"] != FORMAT or trailer["token_dtype"] not in _NUMPY_TYPES:
        raise ValueError(f"unknown format {trailer['format']!r} of {trailer['token_dtype']!r}")
    documents = trailer["documents"]
    expected = documents * (12 if trailer["labels"] else 8)
    if stop != expected:
        raise ValueError(f"{documents} documents need {expected} bytes of footer, there are {stop}")
    return Footer(
        tokens=trailer["tokens"],
        token_dtype=trailer["token_dtype"],
        ends=np.frombuffer(view, "<u8", documents),
        labels=np.frombuffer(view, "<i4", documents, documents * 8) if trailer["labels"] else None,
        continues=trailer["continues"],
    )


def decode_shard(data: Buffer | mmap.mmap, entry: ShardEntry, token_dtype: TokenDtype) -> Shard:
    """The arrays of a shard whose bytes are `data`; ValueError that says what does not fit its entry."""
    kind = numpy_type(token_dtype)
    footer = parse_footer(memoryview(data)[footer_start(entry.tokens, kind.itemsize) :])
    told = (entry.tokens, entry.documents, entry.continues, token_dtype)
    found = (footer.tokens, len(footer.ends), footer.continues, footer.token_dtype)
    if told != found:
        raise ValueError(
            f"its trailer tells {found}, the manifest {told} (tokens, documents, continues, type)"
        )
    return Shard(np.frombuffer(data, kind, entry.tokens), footer.ends, footer.labels, footer.continues)


class ShardSet:
    """The shards of one split, opened when first asked for and checked then. One thread at a time.

    Files on this machine are mapped, the longest unused unmapped when there are too many. Shards
    of other stores are fetched and kept in memory.
    """

    def __init__(
        self, store: Store, folder: str, entries: Sequence[ShardEntry], token_dtype: TokenDtype
    ) -> None:
        self._store = store
        self._folder = folder
        self.entries = entries
        """In stored order."""
        self.token_dtype: TokenDtype = token_dtype
        self._open: OrderedDict[int, Shard] = OrderedDict()
        self._fetched: dict[int, Shard] = {}
        self._checked: set[int] = set()

    def __len__(self) -> int:
        return len(self.entries)

    def shard(self, number: int) -> Shard:
        """The arrays of a shard; DataError that names it when it is missing or damaged."""
        found = self._open.get(number)
        if found is not None:
            self._open.move_to_end(number)
            return found
        return self._fetched.get(number) or self._open_shard(number)

    def footer(self, number: int) -> Footer:
        """What stands behind a shard's tokens, without reading those."""
        entry = self.entries[number]
        start = footer_start(entry.tokens, numpy_type(self.token_dtype).itemsize)
        try:
            return parse_footer(self._store.get(f"{self._folder}/{entry.key}", start=start))
        except NotFoundError as error:
            raise self._missing(entry) from error
        except (ValueError, KeyError, TypeError) as error:
            raise self._damaged(entry, str(error)) from error

    def _open_shard(self, number: int) -> Shard:
        entry = self.entries[number]
        path = self._store.local_path(f"{self._folder}/{entry.key}")
        data = self._fetch(entry) if path is None else self._map(path, entry)
        if number not in self._checked:
            self._check(data, entry)
            self._checked.add(number)
        try:
            shard = decode_shard(data, entry, self.token_dtype)
        except (ValueError, KeyError, TypeError) as error:
            raise self._damaged(entry, str(error)) from error
        if path is None:
            self._fetched[number] = shard
            return shard
        self._open[number] = shard
        if len(self._open) > MOST_MAPPED:
            self._open.popitem(last=False)
        return shard

    def _fetch(self, entry: ShardEntry) -> bytes:
        try:
            return self._store.get(f"{self._folder}/{entry.key}")
        except NotFoundError as error:
            raise self._missing(entry) from error

    def _map(self, path: Path, entry: ShardEntry) -> mmap.mmap:
        try:
            with path.open("rb") as file:
                return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except FileNotFoundError as error:
            raise self._missing(entry) from error
        except ValueError as error:  # an empty file cannot be mapped
            raise self._damaged(entry, f"it is empty, the manifest says {entry.bytes:,} bytes") from error
        except OSError as error:
            raise DataError(f"cannot read {path}: {error.strerror}") from error

    def _check(self, data: Buffer | mmap.mmap, entry: ShardEntry) -> None:
        if len(data) != entry.bytes:
            raise self._damaged(entry, f"it has {len(data):,} bytes, the manifest says {entry.bytes:,}")
        got = xxhash.xxh3_128_hexdigest(data)
        if got != entry.xxh3_128:
            raise self._damaged(entry, f"its xxh3_128 is {got}, the manifest says {entry.xxh3_128}")

    def _damaged(self, entry: ShardEntry, why: str) -> DataError:
        return DataError(
            f"shard {entry.key} of {self._store.url}/{self._folder} is damaged: {why}",
            hint="torchrelay data verify lists all that is damaged; building the dataset again from "
            "the same input writes the shard anew",
        )

    def _missing(self, entry: ShardEntry) -> DataError:
        return DataError(
            f"shard {entry.key} of {self._store.url}/{self._folder} is missing",
            hint="torchrelay data verify lists all that is missing; building the dataset again from "
            "the same input writes the shard anew",
        )
