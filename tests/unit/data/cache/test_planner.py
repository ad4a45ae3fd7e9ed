"""Shards come before they are read, few times, and what was read is let go."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.unit.data.cache.support import (
    SIZE,
    ToyStore,
    content,
    fill,
    held_bytes,
    leftovers,
    open_cache,
    shard_files,
)
from torchrelay.core.errors import StoreError
from torchrelay.data.cache import planner as planner_module
from torchrelay.data.cache.agenda import Route
from torchrelay.data.cache.budget import least_bytes
from torchrelay.data.cache.node_cache import NodeCache
from torchrelay.data.cache.planner import Planner
from torchrelay.data.manifest import ShardEntry
from torchrelay.data.open_shards import OpenShards
from torchrelay.data.order.order import Order, OrderSettings
from torchrelay.data.order.outlook import SlotPattern, first_needs

DEADLINE_S = 20.0
BATCH = 8


@pytest.fixture
def store() -> ToyStore:
    return ToyStore()


def make_order(shards: int, samples: int = 40, lanes: int = 2, window: int = 5) -> Order:
    return Order([samples] * shards, OrderSettings(seed=3, lanes=lanes, window_shards=window, shuffle=True))


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not is_so():
        assert time.monotonic() < deadline, "it did not come about in time"
        threading.Event().wait(0.002)


class Reader:
    """Reads an order as a run does: batch after batch, through shards that it keeps open."""

    def __init__(self, cache: NodeCache, entries: list[ShardEntry], order: Order) -> None:
        self.shards = OpenShards(cache, entries, lambda view, entry, index: view)
        self.order = order
        self.planner = Planner(cache, entries, Route(order, SlotPattern(BATCH, 0, BATCH), 0))

    def read(self, slot: int) -> None:
        self.planner.advance(slot)
        for number in self.order.samples(np.arange(slot, slot + BATCH)).shards.tolist():
            assert bytes(self.shards.shard(number)) == content(number)


@pytest.mark.parametrize(("share", "most"), [(0.3, 1.1), (0.5, 0.85), (0.8, 0.45), (1.0, 0.0)])
def test_a_shard_is_fetched_at_most_once_an_epoch_and_less_often_the_more_fit(
    store: ToyStore, tmp_path: Path, share: float, most: float
) -> None:
    entries, order = fill(store, 40), make_order(40)
    budget = int(share * 40 * SIZE)
    reader = Reader(open_cache(store, tmp_path, budget), entries, order)
    reader.planner.start(2)
    counts = [0]
    for slot in range(0, 3 * order.num_samples, BATCH):
        reader.read(slot)
        assert held_bytes(tmp_path) <= budget
        if (slot + BATCH) % order.num_samples == 0:
            counts.append(store.gets.total())
    reader.planner.close()
    assert (counts[-1] - counts[1]) / 2 / 40 <= most
    assert counts[-1] <= 3 * 1.1 * 40
    assert leftovers(tmp_path) == []


def test_the_smallest_allowed_cache_is_enough(store: ToyStore, tmp_path: Path) -> None:
    entries, order = fill(store, 40), make_order(40)
    told: list[str] = []
    budget = least_bytes(entries, order, 0, SlotPattern(BATCH, 0, BATCH))
    assert budget == 11 * SIZE
    reader = Reader(open_cache(store, tmp_path, budget, told), entries, order)
    reader.planner.start(2)
    for slot in range(0, 2 * order.num_samples, BATCH):
        reader.read(slot)
    reader.planner.close()
    assert store.gets.total() <= 2 * 1.1 * 40 and told == []


def test_shards_come_in_the_order_of_their_first_use(store: ToyStore, tmp_path: Path) -> None:
    entries, order = fill(store, 40), make_order(40)
    came: list[int] = []

    def note(key: str, data: bytes) -> bytes:
        came.append(int(key[1:]))
        return data

    store.answer = note
    reader = Reader(open_cache(store, tmp_path, 40 * SIZE), entries, order)
    reader.planner.start(1)
    wait_until(lambda: len(shard_files(tmp_path)) == 40)
    reader.planner.close()
    assert came[:10] == list(first_needs(order, np.arange(0, 400)))
    needs = first_needs(order, np.arange(order.num_samples))
    windows = [needs[number] // 400 for number in came]
    assert windows == sorted(windows)


def test_the_plan_says_which_of_two_runs_needs_what_last(store: ToyStore, tmp_path: Path) -> None:
    entries, order = fill(store, 20), make_order(20)
    first = Reader(open_cache(store, tmp_path, 20 * SIZE), entries, order)
    first.planner.start(1)
    wait_until(lambda: len(shard_files(tmp_path)) == 20)
    other = open_cache(store, tmp_path, 20 * SIZE)
    stranger = fill(store, 21)[20]
    other.open(stranger)
    gone = {entry.sha256 for entry in entries} - {path.name for path in shard_files(tmp_path)}
    needs = first_needs(order, np.arange(order.num_samples))
    last_window = {entries[number].sha256 for number, slot in needs.items() if slot >= 400}
    assert len(gone) == 1 and gone <= last_window
    first.planner.close()


def test_what_was_read_is_let_go_at_the_end_of_its_window(store: ToyStore, tmp_path: Path) -> None:
    entries, order = fill(store, 20), make_order(20)
    cache = open_cache(store, tmp_path, 20 * SIZE)
    reader = Reader(cache, entries, order)
    released: list[set[str] | None] = []
    cache.on_release(released.append)  # type: ignore[arg-type]
    reader.planner.start(1)
    for slot in range(0, 401, BATCH):
        reader.read(slot)
    reader.planner.close()
    needs = first_needs(order, np.arange(order.num_samples))
    early = {entries[number].sha256 for number, slot in needs.items() if slot < 400}
    assert set().union(*(one or set() for one in released)) == early


def test_a_failing_store_does_not_stop_the_planner(
    store: ToyStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planner_module, "_FIRST_BACKOFF_S", 0.01)
    monkeypatch.setattr(planner_module, "LOOK_AGAIN_S", 0.02)
    entries, order = fill(store, 20), make_order(20)
    failures = [StoreError("503")] * 5

    def fail_at_first(key: str, data: bytes) -> bytes:
        if failures:
            raise failures.pop()
        return data

    store.answer = fail_at_first
    cache = open_cache(store, tmp_path, 20 * SIZE)
    reader = Reader(cache, entries, order)
    reader.planner.start(2)
    wait_until(lambda: len(shard_files(tmp_path)) == 20)
    reader.planner.close()
    assert cache.meter.take().retries == 5


def test_a_plan_is_made_anew_before_it_ends(store: ToyStore, tmp_path: Path) -> None:
    entries, order = fill(store, 10), make_order(10, samples=16)
    told: list[str] = []
    reader = Reader(open_cache(store, tmp_path, 10 * SIZE, told), entries, order)
    reader.planner.start(1)
    for slot in range(0, 8 * order.num_samples, BATCH):
        reader.read(slot)
    assert list(tmp_path.glob("plans/*")) != []
    reader.planner.close()
    assert store.gets.total() == 10 and told == []


def test_close_ends_a_fetch_that_is_under_way(
    store: ToyStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries, order = fill(store, 10), make_order(10)
    monkeypatch.setattr(store, "piece_bytes", 100)
    going, gate = threading.Event(), threading.Event()

    def hold(key: str, data: bytes) -> bytes:
        going.set()
        assert gate.wait(DEADLINE_S)
        return data

    store.answer = hold
    reader = Reader(open_cache(store, tmp_path, 10 * SIZE), entries, order)
    reader.planner.start(2)
    assert going.wait(DEADLINE_S)
    closing = threading.Thread(target=reader.planner.close)
    closing.start()
    wait_until(lambda: reader.planner._is_closed)
    gate.set()
    closing.join(DEADLINE_S)
    assert not closing.is_alive()
    assert not [one for one in threading.enumerate() if one.name.startswith("shard-fetch")]
    assert leftovers(tmp_path) == [] and shard_files(tmp_path) == []


def test_a_reader_does_not_wait_for_what_comes_later(store: ToyStore, tmp_path: Path) -> None:
    entries, order = fill(store, 20), make_order(20)
    urgent = order.samples(np.arange(400, 401)).shards[0]
    gate = threading.Event()

    def hold_others(key: str, data: bytes) -> bytes:
        assert key == f"s{urgent}" or gate.wait(DEADLINE_S)
        return data

    store.answer = hold_others
    reader = Reader(open_cache(store, tmp_path, 20 * SIZE), entries, order)
    reader.planner.start(2)
    wait_until(lambda: store.gets.total() == 2)
    assert bytes(reader.shards.shard(int(urgent))) == content(int(urgent))
    gate.set()
    reader.planner.close()
