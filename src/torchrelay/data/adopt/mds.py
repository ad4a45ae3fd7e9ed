"""MosaicML MDS folders: an `index.json` and shards, perhaps compressed with zstd."""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import xxhash

from torchrelay.core.errors import DataError
from torchrelay.data.adopt.index_json import IndexFile, check_size, read_index_file
from torchrelay.data.adopt.plan import Found, Plan, Scanned, TokenFacts, Work
from torchrelay.data.adopt.stream import PieceReader, Stream
from torchrelay.data.formats.mds import column_of
from torchrelay.data.formats.unpack import stream_unpacker
from torchrelay.data.manifest import Column, Unpack

VERSION = 2
_HASHES: dict[str, Callable[[], Any]] = {
    "sha256": hashlib.sha256,
    "sha1": hashlib.sha1,
    "md5": lambda: hashlib.md5(usedforsecurity=False),
    "blake2b": hashlib.blake2b,
    "xxh64": xxhash.xxh64,
    "xxh128": xxhash.xxh128,
    "xxh3_64": xxhash.xxh3_64,
    "xxh3_128": xxhash.xxh3_128,
}
"""Hashes by which an index may tell what a shard is."""


class _Shard(NamedTuple):
    """One shard as the index tells it."""

    key: str
    samples: int
    stored_bytes: int
    raw_bytes: int
    compressed: bool
    hashes: dict[str, str]
    """Of the stored file, by name of the hash."""
    columns: tuple[Column, ...]


def plan_mds(found: Found, facts: TokenFacts) -> Plan:
    """The shards of every split; DataError when one is missing, of another size, or holds pickles."""
    works = []
    for split, keys in found.splits.items():
        for key in keys:
            index = read_index_file(found.store, key)
            for shard in _read_shards(index):
                check_size(found, index, shard.key, shard.stored_bytes)
                works.append(Work(split, shard.key, 0, shard.stored_bytes, partial(scan_mds, shard=shard)))
    return Plan(format="mds", works=works)


def scan_mds(stream: Stream, shard: _Shard) -> Scanned:
    """Check a shard against what its index tells; ValueError with both when they differ."""
    kind: Unpack | None = "zstd" if shard.compressed else None
    with_hash = _Hashed(stream.pieces(), shard.hashes)
    reader = PieceReader(stream_unpacker(kind)(with_hash))
    samples = int.from_bytes(reader.take(4), "little")
    if samples != shard.samples:
        raise ValueError(f"it has {samples:,} samples, its index says {shard.samples:,}")
    offsets = np.frombuffer(reader.take(4 * (samples + 1)), "<u4")
    if len(offsets) != samples + 1 or (offsets[1:] < offsets[:-1]).any():
        raise ValueError(f"the offsets of its {samples:,} samples are damaged")
    for _ in reader.rest():
        pass
    if (reader.position, int(offsets[-1])) != (shard.raw_bytes, shard.raw_bytes):
        raise ValueError(
            f"it has {reader.position:,} bytes, its offsets end at {int(offsets[-1]):,}, "
            f"its index says {shard.raw_bytes:,}"
        )
    with_hash.check()
    return Scanned(
        samples=samples,
        unpack=kind,
        unpacked_bytes=shard.raw_bytes if kind else 0,
        columns=shard.columns,
    )


class _Hashed:
    """Pieces that are hashed on their way, with the first hash of the index that is known here."""

    def __init__(self, pieces: Iterable[bytes], told: dict[str, str]) -> None:
        self._pieces = pieces
        self._name = next((name for name in told if name in _HASHES), None)
        self._told = told.get(self._name or "", "")
        self._digest = _HASHES[self._name]() if self._name else None

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._pieces:
            if self._digest is not None:
                self._digest.update(piece)
            yield piece

    def check(self) -> None:
        """ValueError when the pieces are not what the index tells."""
        if self._digest is not None and self._digest.hexdigest() != self._told:
            raise ValueError(
                f"its {self._name} is {self._digest.hexdigest()}, its index says {self._told}: "
                "it is damaged, or another shard was put in its place"
            )


def _read_shards(index: IndexFile) -> list[_Shard]:
    tree = index.tree
    if tree.get("version") != VERSION:
        raise DataError(
            f"{index.where} is of version {tree.get('version')!r}; this torchrelay reads version {VERSION}"
        )
    try:
        return [_read_shard(index, shard) for shard in tree["shards"]]
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise DataError(f"{index.where}: {_describe(error)}") from error


def _read_shard(index: IndexFile, tree: dict[str, Any]) -> _Shard:
    if (tree["format"], tree["version"]) != ("mds", VERSION):
        raise ValueError(f"a shard is of format {tree['format']!r}, version {tree['version']!r}")
    zipped, raw = tree["zip_data"], tree["raw_data"]
    compression = str(tree["compression"]).partition(":")[0]
    if zipped and compression != "zstd":
        raise ValueError(f"{zipped['basename']} is compressed with {compression}; only zstd is read")
    stored = zipped or raw
    return _Shard(
        key=index.key(stored["basename"]),
        samples=int(tree["samples"]),
        stored_bytes=int(stored["bytes"]),
        raw_bytes=int(raw["bytes"]),
        compressed=bool(zipped),
        hashes=dict(stored["hashes"]),
        columns=tuple(
            column_of(name, encoding)
            for name, encoding in zip(tree["column_names"], tree["column_encodings"], strict=True)
        ),
    )


def _describe(error: Exception) -> str:
    return f"there is no {error}" if isinstance(error, KeyError) else str(error)
