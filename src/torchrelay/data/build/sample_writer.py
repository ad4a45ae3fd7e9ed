"""Puts encoded samples in shards into the store, under the hash of their content.

Memory is bounded by the size of a shard. No sample is cut: one that is larger than a shard gets a
shard of its own.
"""

import hashlib
from array import array
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from torchrelay.core.errors import DataError
from torchrelay.data.formats.mds import SampleEncoder, encode_head, encode_tail
from torchrelay.data.layout import shard_key
from torchrelay.data.manifest import Column, ShardEntry
from torchrelay.store.base import Buffer, Store

HEADER_BYTES = 20
"""Number of samples, end of the samples, and the tail."""
SAMPLE_BYTES = 12
"""Offset and id."""


class ShardContent(NamedTuple):
    """What a shard is made of."""

    pieces: Sequence[Buffer]
    """Encoded samples, joined in any way."""
    sizes: Sequence[int]
    """Bytes of every sample."""
    ids: NDArray[np.uint64]


def write_sample_shard(store: Store, folder: str, header: bytes, content: ShardContent) -> ShardEntry:
    """Write one shard; `header` is that of `SampleEncoder`. DataError when a sample is too large for any."""
    try:
        head = encode_head(header, content.sizes)
    except ValueError as error:
        raise DataError(f"a sample is too large: {error}", hint="divide it, or store a reference") from error
    parts = (head, *content.pieces, encode_tail(content.ids))
    sha256, xxh3_128 = hashlib.sha256(), xxhash.xxh3_128()
    for part in parts:
        sha256.update(part)
        xxh3_128.update(part)
    entry = ShardEntry(
        key=shard_key(sha256.hexdigest(), ".mds"),
        bytes=sum(map(len, parts)),
        sha256=sha256.hexdigest(),
        xxh3_128=xxh3_128.hexdigest(),
        samples=len(content.sizes),
    )
    # Written even where it exists: the bytes are the same, and a damaged shard is healed.
    with store.open_writer(f"{folder}/{entry.key}") as writer:
        for part in parts:
            writer.write(part)
    return entry


class SampleWriter:
    """Writes the shards of one split, in the order in which samples are given. One thread."""

    def __init__(self, store: Store, folder: str, columns: Sequence[Column], shard_bytes: int) -> None:
        """`shard_bytes` is the most that a shard of several samples has."""
        self._store = store
        self._folder = folder
        self._header = SampleEncoder(columns).header
        self._room = shard_bytes - len(self._header) - HEADER_BYTES
        self._samples = bytearray()
        self._sizes = array("Q")
        self._ids = array("Q")
        self._entries: list[ShardEntry] = []

    @property
    def is_empty(self) -> bool:
        """Whether nothing was given yet."""
        return not self._entries and not self._sizes

    def append(self, encoded: bytes, sample_id: int) -> None:
        """One more sample; `sample_id` is below 2**64. DataError when it is too large for any shard."""
        needed = len(self._samples) + len(encoded) + SAMPLE_BYTES * (len(self._sizes) + 1)
        if self._sizes and needed > self._room:
            self._write()
        self._samples += encoded
        self._sizes.append(len(encoded))
        self._ids.append(sample_id)

    def close(self) -> tuple[ShardEntry, ...]:
        """Write what is left; the entries of all shards in stored order."""
        if self._sizes:
            self._write()
        return tuple(self._entries)

    def _write(self) -> None:
        content = ShardContent((self._samples,), self._sizes, np.array(self._ids, np.uint64))
        self._entries.append(write_sample_shard(self._store, self._folder, self._header, content))
        self._samples = bytearray()
        self._sizes = array("Q")
        self._ids = array("Q")
