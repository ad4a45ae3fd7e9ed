"""A process that reads shards through the node's cache, and dies where it is told; see test_cache.py.

    python -m tests.ranks.cache_reader '{"store": …, "root": …, "budget": …, "order": seed or null, …}'

Prints one line of JSON at the end: downloads, counters, and warnings.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from torchrelay.data.cache.agenda import Route
from torchrelay.data.cache.folder import Folder
from torchrelay.data.cache.node_cache import NodeCache
from torchrelay.data.cache.origin import Origin
from torchrelay.data.cache.planner import Planner
from torchrelay.data.manifest import ShardEntry
from torchrelay.data.open_shards import OpenShards
from torchrelay.data.order.order import Order, OrderSettings
from torchrelay.data.order.outlook import SlotPattern
from torchrelay.store.files import FileStore

BATCH = 8
SAMPLES = 40


class SlowStore:
    """A folder as a store elsewhere: counts, waits, and may kill its process in the middle of a fetch."""

    def __init__(self, folder: Path, spec: dict[str, Any]) -> None:
        self._files = FileStore(folder)
        self._spec = spec
        self.gets = 0
        self.url = "slow://store"

    def get(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        self.gets += 1
        if self._spec.get("die") == "fetch" and self.gets == self._spec["at"]:
            die()
        if self._spec.get("hang"):
            Path(self._spec["hang"]).touch()
            time.sleep(600)
        time.sleep(self._spec.get("delay_s", 0.0))
        return self._files.get(key, start=start, length=length)

    def stream(self, key: str, *, start: int = 0, length: int | None = None) -> Iterator[bytes]:
        yield self.get(key, start=start, length=length)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def deadly(function: Callable[..., Any], count: int, *, after: bool) -> Callable[..., Any]:
    """The function, whose `count`-th call on a shard kills the process before or after it is done."""
    calls = [0]

    def call(path: Any, *more: Any) -> Any:
        is_shard = bool(more) or os.path.basename(os.path.dirname(path)) not in ("incoming", "plans")
        calls[0] += is_shard
        if is_shard and calls[0] == count and not after:
            die()
        result = function(path, *more)
        if is_shard and calls[0] == count:
            die()
        return result

    return call


def arm(spec: dict[str, Any]) -> None:
    moment, _, place = spec.get("die", "").partition(" ")
    if place == "rename":
        os.replace = deadly(os.replace, spec["at"], after=moment == "after")
    if place == "eviction":
        os.unlink = deadly(os.unlink, spec["at"], after=moment == "after")


def read_all(cache: NodeCache, entries: list[ShardEntry], spec: dict[str, Any]) -> None:
    for entry in entries:
        check(cache.open(entry), entry)


def read_in_order(cache: NodeCache, entries: list[ShardEntry], spec: dict[str, Any]) -> None:
    settings = OrderSettings(seed=spec["order"], lanes=2, window_shards=5, shuffle=True)
    order = Order([SAMPLES] * len(entries), settings)
    shards = OpenShards(cache, entries, lambda view, entry, index: (view, entry))
    planner = Planner(cache, entries, Route(order, SlotPattern(BATCH, 0, BATCH), 0))
    planner.start(2)
    for slot in range(0, spec["epochs"] * order.num_samples, BATCH):
        planner.advance(slot)
        for number in order.samples(np.arange(slot, slot + BATCH)).shards.tolist():
            check(*shards.shard(number))
        time.sleep(spec.get("step_s", 0.0))
        if spec.get("beat"):
            Path(spec["beat"]).write_text(str(slot))
    planner.close()


def check(view: memoryview, entry: ShardEntry) -> None:
    assert xxhash.xxh3_128_hexdigest(view) == entry.xxh3_128, entry.key


def main() -> None:
    spec = json.loads(sys.argv[1])
    arm(spec)
    warnings: list[str] = []
    store = SlowStore(Path(spec["store"]), spec)
    origin = Origin(store, "", store, "")  # type: ignore[arg-type]
    cache = NodeCache(origin, Folder(Path(spec["root"])), lambda: spec["budget"], warn=warnings.append)
    entries = [ShardEntry(**one) for one in json.loads(Path(spec["store"], "entries.json").read_text())]
    deadline = time.monotonic() + 60
    while "go" in spec and not Path(spec["go"]).exists():
        assert time.monotonic() < deadline
        time.sleep(0.002)
    (read_all if spec.get("order") is None else read_in_order)(cache, entries, spec)
    result = {"gets": store.gets, "warnings": warnings, **asdict(cache.meter.take())}
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
