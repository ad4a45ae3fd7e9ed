"""Shards in memory: bounded, checked, and given up when told."""

import pytest

from tests.unit.data.cache.support import SIZE, ToyStore, content, fill
from torchrelay.core.errors import DataError
from torchrelay.data.cache.fetched import FetchedBytes, Memory
from torchrelay.data.cache.origin import Origin
from torchrelay.data.figures import Meter


def test_the_longest_unused_is_dropped_and_fetched_anew() -> None:
    store = ToyStore()
    entries = fill(store, 3)
    dropped: list[object] = []
    origin = Origin(store, "", store, "")
    memory = Memory(origin, Meter(), most_bytes=2 * SIZE, release=dropped.append)
    for number in (0, 1, 0, 2, 0, 1):
        assert bytes(memory.open(entries[number])) == content(number)
    assert store.gets == {"s0": 1, "s1": 2, "s2": 1}
    assert dropped == [[entries[1].sha256], [entries[2].sha256]]


def test_wrong_bytes_are_fetched_anew_and_then_named() -> None:
    store = ToyStore()
    entry = fill(store, 1)[0]
    store.answer = lambda key, data: data[:-1]
    source = FetchedBytes(store, "", store, "")
    with pytest.raises(DataError, match="shard s0 of toy://store is damaged: fetched 3 times, it has 999"):
        source.open(entry)
    store.answer = lambda key, data: data
    assert bytes(source.open(entry)) == content(0)
    assert source.meter.take().refetched == 3
