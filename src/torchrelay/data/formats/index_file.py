"""The small file that tells where the samples of an adopted shard begin, so that reading parses nothing.

first 8 bytes   magic
next 4 bytes    u32 length of the header
header          JSON; what it holds is the format's business, see the module of each
zeros           to a multiple of 8 bytes
u64 numbers     little-endian, to the end of the file
"""

import json
import struct
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

MAGIC = b"RELAYIDX"
_HEAD = struct.Struct("<8sI")


class Index(NamedTuple):
    """What stands in the file."""

    header: dict[str, Any]
    numbers: NDArray[np.uint64]
    """Flat, read-only."""


def write_index(header: dict[str, Any], numbers: NDArray[np.uint64]) -> bytes:
    """Bytes that `parse_index` reads back; the same index gives the same bytes."""
    text = json.dumps(header, sort_keys=True).encode()
    padding = bytes(-(_HEAD.size + len(text)) % 8)
    return _HEAD.pack(MAGIC, len(text)) + text + padding + numbers.astype("<u8").tobytes()


def parse_index(data: bytes | None) -> Index:
    """The index in `data`; ValueError that says what is wrong."""
    if data is None:
        raise ValueError("the manifest names no index file for it")
    if len(data) < _HEAD.size or data[:8] != MAGIC:
        raise ValueError(f"its index file begins with {data[:8]!r}, not with {MAGIC!r}")
    _, length = _HEAD.unpack_from(data)
    start = -(-(_HEAD.size + length) // 8) * 8
    if start > len(data) or (len(data) - start) % 8:
        raise ValueError(f"its index file of {len(data)} bytes is cut off")
    header: dict[str, Any] = json.loads(data[_HEAD.size : _HEAD.size + length])
    return Index(header, np.frombuffer(data, "<u8", offset=start))
