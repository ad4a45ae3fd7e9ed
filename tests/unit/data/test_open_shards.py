"""Which shards are open, and when they are opened again."""

import threading
from collections.abc import Callable, Collection

import pytest

from torchrelay.core.errors import DataError
from torchrelay.data import open_shards as open_shards_module
from torchrelay.data.manifest import ShardEntry
from torchrelay.data.open_shards import OpenShards


def entry(number: int) -> ShardEntry:
    return ShardEntry(key=f"s{number}", bytes=1, sha256=f"{number:064x}", xxh3_128="", samples=1)


class Source:
    """Gives shards of one byte and counts how often; wants some closed when it is told to."""

    def __init__(self) -> None:
        self.opened: list[str] = []
        self.release: Callable[[Collection[str] | None], None] = lambda hashes: None

    def open(self, entry: ShardEntry) -> memoryview:
        self.opened.append(entry.key)
        return memoryview(bytes([int(entry.key[1:])]))

    def tail(self, entry: ShardEntry, start: int) -> bytes:
        raise NotImplementedError

    def index(self, entry: ShardEntry) -> bytes | None:
        return b"i" + entry.key.encode()

    def on_release(self, listener: Callable[[Collection[str] | None], None]) -> None:
        self.release = listener


def decode(data: memoryview, entry: ShardEntry, index: bytes | None) -> tuple[int, bytes | None]:
    if data[0] == 7:
        raise ValueError("seven")
    return data[0], index


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
def shards(source: Source) -> OpenShards[tuple[int, bytes | None]]:
    return OpenShards(source, [entry(number) for number in range(9)], decode)


def test_a_shard_is_opened_once_with_its_index(source: Source, shards: OpenShards) -> None:
    assert len(shards) == 9
    assert [shards.shard(3), shards.shard(3)] == [(3, b"is3")] * 2
    assert source.opened == ["s3"]


def test_the_longest_unused_is_closed(
    source: Source, shards: OpenShards, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_shards_module, "MOST_OPEN", 2)
    for number in (0, 1, 0, 2, 0, 1):
        shards.shard(number)
    assert source.opened == ["s0", "s1", "s2", "s1"]


def test_what_a_source_wants_closed_is_opened_anew(source: Source, shards: OpenShards) -> None:
    for number in (0, 1, 2):
        shards.shard(number)
    source.release([entry(1).sha256])
    for number in (0, 1, 2):
        shards.shard(number)
    assert source.opened == ["s0", "s1", "s2", "s1"]
    source.release(None)
    shards.shard(0)
    assert source.opened[4:] == ["s0"]


def test_bytes_that_cannot_be_read_name_the_shard(shards: OpenShards) -> None:
    with pytest.raises(DataError, match="shard s7 is damaged: seven"):
        shards.shard(7)


def test_threads_share_one_opening(source: Source, shards: OpenShards) -> None:
    threads = [threading.Thread(target=shards.shard, args=(number % 3,)) for number in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(source.opened) == ["s0", "s1", "s2"]
