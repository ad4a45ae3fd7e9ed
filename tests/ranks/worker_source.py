"""Data whose reading can be made slow, deadly or wrong, for the tests of workers.

Workers open it anew, so what it is to do comes with the options.
"""

import gzip
import hashlib
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from torchrelay.data.manifest import ShardEntry
from torchrelay.store.base import Store


class Numbers:
    """Sample i is i, a picture of it, and a number drawn for it."""

    version = "numbers-1"

    def __init__(self, size: int, fault: str, fault_at: int, folder: str) -> None:
        self._size = size
        self._fault = fault
        self._fault_at = fault_at
        self._folder = Path(folder)

    def __len__(self) -> int:
        return self._size

    def read(self, index: int, *, rng: np.random.Generator) -> dict[str, NDArray[Any]]:
        if index == self._fault_at:
            self._go_wrong()
        return {
            "x": np.float32(index),
            "picture": np.full((3, 5), index % 251, np.uint8),
            "drawn": rng.standard_normal(2),
        }

    def _go_wrong(self) -> None:
        if self._fault == "raise":
            raise ZeroDivisionError("wrong on purpose")
        if self._fault == "always-die":
            sys.stderr.write("no memory left, for example\n")
            os._exit(9)
        if not self._fault or (self._folder / "done").exists():
            return
        (self._folder / "done").touch()
        if self._fault == "die":
            os._exit(9)
        time.sleep(1000)  # stuck


def open_data(split: str, size: int = 40, fault: str = "", fault_at: int = -1, folder: str = ".") -> Numbers:
    if fault == "refuse":
        raise OSError("the source is not there")
    return Numbers(size, fault, fault_at, folder)


def without_torch(split: str) -> Numbers:
    """Tells by its first sample whether torch was imported in the process that reads."""
    return Numbers(2 if "torch" in sys.modules else 1, "", -1, ".")


class _Texts(Numbers):
    def read(self, index: int, *, rng: np.random.Generator) -> dict[str, Any]:
        return {"x": np.array("word")}


def texts(split: str) -> Numbers:
    """Samples that are no arrays of numbers."""
    return _Texts(4, "", -1, ".")


def decode(
    sample: dict[str, Any], rng: np.random.Generator, scale: int = 1, broken: int = -1
) -> dict[str, NDArray[Any]]:
    """What `data.decode` names: a number from the bytes of the sample, and one drawn for it."""
    number = int.from_bytes(sample["data"], "little") * scale
    if number == broken:
        raise ZeroDivisionError("wrong on purpose")
    return {"x": np.array([number]), "drawn": rng.random(2, np.float32)}


def pack(store: Store, entry: ShardEntry) -> ShardEntry:
    """The shard compressed, so that it is read from the node's cache even from a folder."""
    raw = store.get(f"datasets/d/{entry.key}")
    data = gzip.compress(raw)
    store.put(f"datasets/d/{entry.key}.gz", data)
    return replace(
        entry,
        key=f"{entry.key}.gz",
        bytes=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
        xxh3_128=xxhash.xxh3_128_hexdigest(data),
        unpack="gzip",
        unpacked_bytes=len(raw),
    )
