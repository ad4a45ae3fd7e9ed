"""Shards that lie open without use are closed when somebody needs the room."""

import gc
import threading
import time
from pathlib import Path

import pytest

from tests.unit.data.cache.support import SIZE, ToyStore, content, fill, open_cache, shard_files
from torchrelay.data.cache import watch
from torchrelay.data.open_shards import OpenShards

DEADLINE_S = 20.0


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "PERIOD_S", 0.005)


def test_an_idle_reader_gives_way_to_a_busy_one(tmp_path: Path) -> None:
    store = ToyStore()
    entries = fill(store, 6)
    idle = OpenShards(open_cache(store, tmp_path, 3 * SIZE), entries, lambda view, entry, index: view)
    for number in range(3):
        idle.shard(number)
    busy = open_cache(store, tmp_path, 3 * SIZE)
    assert bytes(busy.open(entries[3])) == content(3)
    assert busy.meter.take().in_memory == 0 and len(shard_files(tmp_path)) == 3
    assert bytes(idle.shard(0)) == content(0)


def test_a_reader_gives_way_to_itself(tmp_path: Path) -> None:
    store, told = ToyStore(), list[str]()
    entries = fill(store, 9)
    cache = open_cache(store, tmp_path, 3 * SIZE, told)
    shards = OpenShards(cache, entries, lambda view, entry, index: view)
    for number in range(9):
        assert bytes(shards.shard(number)) == content(number)
    assert told == [] and cache.meter.take().in_memory == 0


def test_the_watch_ends_with_what_it_watches(tmp_path: Path) -> None:
    cache = open_cache(ToyStore(), tmp_path, SIZE)
    before = set(threading.enumerate())
    cache.on_release(lambda hashes: None)
    (watcher,) = set(threading.enumerate()) - before
    del cache
    deadline = time.monotonic() + DEADLINE_S
    while watcher.is_alive():
        gc.collect()  # the watcher may just be looking, so once may not be enough
        watcher.join(0.01)
        assert time.monotonic() < deadline
