"""What a reader gets, whatever happens to the store, the disk and the folder."""

import gzip
import os
import shutil
from pathlib import Path

import pytest

from tests.unit.data.cache.support import (
    SIZE,
    ToyStore,
    content,
    entry_of,
    fill,
    held_bytes,
    leftovers,
    open_cache,
    shard_files,
)
from torchrelay.core.errors import DataError
from torchrelay.data.cache import node_cache
from torchrelay.data.cache.folder import Folder
from torchrelay.data.cache.node_cache import NodeCache
from torchrelay.data.cache.origin import Origin
from torchrelay.data.figures import Figures


@pytest.fixture
def store() -> ToyStore:
    return ToyStore()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_cache, "ROOM_PATIENCE_S", 0.03)


def test_a_shard_is_fetched_once_and_read_from_disk_by_all(store: ToyStore, tmp_path: Path) -> None:
    entries = fill(store, 3)
    caches = [open_cache(store, tmp_path, 10 * SIZE) for _ in range(2)]
    for cache in caches:
        for number, entry in enumerate(entries):
            assert bytes(cache.open(entry)) == content(number)
    assert set(store.gets.values()) == {1}
    first, second = (cache.meter.take() for cache in caches)
    assert (first.hits, first.misses, first.fetches, first.fetched_bytes) == (0, 3, 3, 3 * SIZE)
    assert first.waited_seconds >= first.fetch_seconds > 0
    assert second == Figures(hits=3)
    assert leftovers(tmp_path) == []


def test_a_span_of_a_larger_object_is_a_shard(store: ToyStore, tmp_path: Path) -> None:
    store.objects["big"] = b"x" * 100 + content(1) + b"y" * 100
    entry = entry_of(content(1), "big", start=100)
    cache = open_cache(store, tmp_path, 10 * SIZE)
    assert bytes(cache.open(entry)) == content(1)
    assert bytes(cache.tail(entry, SIZE - 7)) == content(1)[-7:]


def test_nothing_is_touched_before_a_shard_is_asked_for(store: ToyStore, tmp_path: Path) -> None:
    cache = open_cache(store, tmp_path / "cache", 10 * SIZE)
    entry = fill(store, 1)[0]
    assert cache.tail(entry, 990) == content(0)[990:]
    assert not (tmp_path / "cache").exists()


def test_the_longest_unused_goes_when_nobody_has_a_plan(store: ToyStore, tmp_path: Path) -> None:
    entries = fill(store, 4)
    cache = open_cache(store, tmp_path, 3 * SIZE)
    for entry in entries[:3]:
        cache.open(entry)
    for age, number in ((100, 1), (50, 0), (10, 2)):
        path = Folder(tmp_path).path(entries[number].sha256)
        os.utime(path, (path.stat().st_atime, path.stat().st_mtime - age))
    cache.open(entries[3])
    assert {path.name for path in shard_files(tmp_path)} == {entries[n].sha256 for n in (0, 2, 3)}
    assert cache.meter.take().evictions == 1
    assert held_bytes(tmp_path) <= 3 * SIZE


def test_what_is_read_stays_and_the_next_shard_goes_past_the_cache(store: ToyStore, tmp_path: Path) -> None:
    told: list[str] = []
    entries = fill(store, 3)
    cache = open_cache(store, tmp_path, 2 * SIZE, told)
    views = [cache.open(entry) for entry in entries]
    assert [bytes(view) for view in views] == [content(number) for number in range(3)]
    assert len(shard_files(tmp_path)) == 2 and cache.meter.take().in_memory == 1
    assert len(told) == 1 and "s2" in told[0] and "in use" in told[0]
    views.clear()
    cache.open(entries[2])
    assert len(shard_files(tmp_path)) == 2 and cache.meter.take().in_memory == 0
    assert entries[2].sha256 in {path.name for path in shard_files(tmp_path)}


def test_an_open_view_outlives_its_file(store: ToyStore, tmp_path: Path) -> None:
    entry = fill(store, 1)[0]
    view = open_cache(store, tmp_path, SIZE).open(entry)
    shutil.rmtree(tmp_path)
    assert bytes(view) == content(0)


@pytest.mark.parametrize("wrong", [1, 2])
def test_bytes_that_arrive_wrong_are_fetched_anew(store: ToyStore, tmp_path: Path, wrong: int) -> None:
    entry = fill(store, 1)[0]
    answers = [b"\0" + content(0)[1:], content(0)[:-1]][:wrong]
    store.answer = lambda key, data: answers.pop() if answers else data
    cache = open_cache(store, tmp_path, 2 * SIZE)
    assert bytes(cache.open(entry)) == content(0)
    assert cache.meter.take().refetched == wrong
    assert leftovers(tmp_path) == [] and not list(tmp_path.glob("quarantine/*"))


def test_bytes_that_stay_wrong_are_quarantined_and_named(store: ToyStore, tmp_path: Path) -> None:
    entries = fill(store, 6)
    store.answer = lambda key, data: b"\0" + data[1:]
    cache = open_cache(store, tmp_path, 5 * SIZE)
    for entry in entries:
        with pytest.raises(DataError) as caught:
            cache.open(entry)
    assert store.gets["s5"] == 3
    wrong = entry_of(b"\0" + content(5)[1:], "s5").sha256
    assert all(word in str(caught.value) for word in ("s5", "toy://store", wrong, entries[5].sha256))
    kept = list(tmp_path.glob("quarantine/*"))
    assert len(kept) == 4 and held_bytes(tmp_path) <= 5 * SIZE
    newest = next(path for path in kept if str(path) in str(caught.value))
    assert newest.read_bytes() == b"\0" + content(5)[1:]
    assert leftovers(tmp_path) == [] and shard_files(tmp_path) == []


@pytest.mark.parametrize("damage", ["flip", "cut", "empty"])
def test_damage_on_disk_is_found_at_first_open_and_mended(
    store: ToyStore, tmp_path: Path, damage: str
) -> None:
    entry = fill(store, 1)[0]
    open_cache(store, tmp_path, 2 * SIZE).open(entry)
    path = shard_files(tmp_path)[0]
    good = path.read_bytes()
    bad = {"flip": good[:500] + bytes([good[500] ^ 1]) + good[501:], "cut": good[:-1], "empty": b""}
    path.write_bytes(bad[damage])
    cache = open_cache(store, tmp_path, 2 * SIZE)
    assert bytes(cache.open(entry)) == content(0) == shard_files(tmp_path)[0].read_bytes()
    assert cache.meter.take().refetched == 1 and store.gets["s0"] == 2


def test_a_missing_shard_is_named(store: ToyStore, tmp_path: Path) -> None:
    entry = fill(store, 1)[0]
    store.objects.clear()
    with pytest.raises(DataError, match="shard s0 of toy://store is missing"):
        open_cache(store, tmp_path, SIZE).open(entry)
    assert leftovers(tmp_path) == []


def test_a_folder_that_is_deleted_is_made_again(store: ToyStore, tmp_path: Path) -> None:
    told: list[str] = []
    entries = fill(store, 4)
    cache = open_cache(store, tmp_path / "c", 10 * SIZE, told)
    cache.open(entries[0])
    shutil.rmtree(tmp_path / "c")
    assert bytes(cache.open(entries[1])) == content(1)
    is_first = [True]

    def delete_then_answer(key: str, data: bytes) -> bytes:
        if is_first.pop() if is_first else False:
            shutil.rmtree(tmp_path / "c")
        return data

    store.answer = delete_then_answer
    assert bytes(cache.open(entries[2])) == content(2)
    assert [path.name for path in shard_files(tmp_path / "c")] == [entries[2].sha256] and told == []


def test_where_no_folder_can_be_made_shards_go_through_memory_until_it_can(
    store: ToyStore, tmp_path: Path
) -> None:
    told: list[str] = []
    (tmp_path / "c").write_text("a file where the folder should be")
    entries = fill(store, 3)
    cache = open_cache(store, tmp_path / "c", 10 * SIZE, told)
    for number in (0, 1):
        assert bytes(cache.open(entries[number])) == content(number)
    assert cache.meter.take().in_memory == 2 and len(told) == 1
    (tmp_path / "c").unlink()
    assert bytes(cache.open(entries[2])) == content(2)
    assert cache.meter.take().in_memory == 0 and len(shard_files(tmp_path / "c")) == 1


def test_a_packed_shard_is_unpacked_once_and_checked_by_a_hash_of_its_own(
    store: ToyStore, tmp_path: Path
) -> None:
    packed = gzip.compress(content(5, 50_000))
    store.objects["p"] = packed
    entry = entry_of(packed, "p", unpack="gzip", unpacked_bytes=50_000)
    cache = open_cache(store, tmp_path, 10**6)
    assert bytes(cache.open(entry)) == content(5, 50_000)
    assert bytes(open_cache(store, tmp_path, 10**6).open(entry)) == content(5, 50_000)
    assert store.gets["p"] == 1 and leftovers(tmp_path) == []
    path = shard_files(tmp_path)[0]
    path.write_bytes(path.read_bytes()[:-20])
    assert bytes(open_cache(store, tmp_path, 10**6).open(entry)) == content(5, 50_000)
    assert store.gets["p"] == 2


def test_a_shard_that_unpacks_to_more_than_was_said_still_fits_the_budget(
    store: ToyStore, tmp_path: Path
) -> None:
    packed = gzip.compress(content(5, 9_000))
    store.objects["p"] = packed
    entries = fill(store, 9)
    entry = entry_of(packed, "p", unpack="gzip", unpacked_bytes=100)
    cache = open_cache(store, tmp_path, 10_000)
    for other in entries:
        cache.open(other)
    assert bytes(cache.open(entry)) == content(5, 9_000)
    assert held_bytes(tmp_path) <= 10_000
    assert cache.meter.take().evictions == 9


def test_a_packed_shard_without_room_is_unpacked_in_memory(store: ToyStore, tmp_path: Path) -> None:
    packed = gzip.compress(content(5, 9_000))
    store.objects["p"] = packed
    entry = entry_of(packed, "p", unpack="gzip", unpacked_bytes=9_000)
    assert bytes(open_cache(store, tmp_path, 10).open(entry)) == content(5, 9_000)


def test_a_full_disk_makes_room_and_tries_again(
    store: ToyStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = fill(store, 4)
    cache = open_cache(store, tmp_path, 100 * SIZE)
    for entry in entries[:3]:
        cache.open(entry)
    monkeypatch.setattr("torchrelay.data.cache.ledger.free_bytes", lambda folder: SIZE // 2)
    assert bytes(cache.open(entries[3])) == content(3)
    assert len(shard_files(tmp_path)) == 3 and cache.meter.take().evictions == 1


def test_a_write_that_is_refused_evicts_what_it_needs(
    store: ToyStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = fill(store, 3)
    cache = open_cache(store, tmp_path, 100 * SIZE)
    cache.open(entries[0])
    cache.open(entries[1])
    write, refusals = os.write, [OSError(122, "Disk quota exceeded")]

    def refuse_once(descriptor: int, data: bytes) -> int:
        if refusals:
            raise refusals.pop()
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", refuse_once)
    assert bytes(cache.open(entries[2])) == content(2)
    assert cache.meter.take().evictions == 1 and leftovers(tmp_path) == []


def test_a_store_error_passes_through_and_leaves_nothing(store: ToyStore, tmp_path: Path) -> None:
    entry = fill(store, 1)[0]

    def fail(key: str, data: bytes) -> bytes:
        raise DataError("no such luck")

    store.answer = fail
    with pytest.raises(DataError, match="no such luck"):
        open_cache(store, tmp_path, SIZE).open(entry)
    assert leftovers(tmp_path) == []


def test_identical_shards_share_one_file(store: ToyStore, tmp_path: Path) -> None:
    store.objects |= {"a": content(1), "b": content(1)}
    cache = open_cache(store, tmp_path, 2 * SIZE)
    for key in ("a", "b"):
        assert bytes(cache.open(entry_of(content(1), key))) == content(1)
    assert len(shard_files(tmp_path)) == 1 and store.gets.total() == 1


def test_indexes_come_from_the_datasets_own_store(store: ToyStore, tmp_path: Path) -> None:
    other = ToyStore()
    index = content(9)
    key = f"indexes/{entry_of(index, 'x').sha256}.idx"
    other.objects[f"datasets/d/{key}"] = index
    entry = entry_of(content(0), "s0", index=key)
    cache = NodeCache(Origin(store, "", other, "datasets/d"), Folder(tmp_path), lambda: SIZE)
    assert cache.index(entry) == index
