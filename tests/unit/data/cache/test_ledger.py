"""The account of the folder: reservations, the dead, and two who want the same."""

import os
import time
from pathlib import Path

import numpy as np
import pytest

from tests.unit.data.cache.support import SIZE, ToyStore, fill, leftovers, open_cache, shard_files
from torchrelay.data.cache.folder import Folder, Incoming
from torchrelay.data.cache.ledger import Busy, Ledger, NoRoomError
from torchrelay.data.cache.victim import Uses
from torchrelay.data.figures import Meter

NAMES = [f"{number:02x}" * 32 for number in range(8)]


def make_ledger(root: Path, budget: int = 3 * SIZE) -> Ledger:
    return Ledger(Folder(root), lambda: budget, Meter())


def put(ledger: Ledger, root: Path, name: str, size: int = SIZE) -> None:
    incoming = ledger.reserve(name, size)
    assert isinstance(incoming, Incoming)
    incoming.write(b"x" * size)
    ledger.commit(incoming, incoming.path, name)
    incoming.close()


def test_bytes_count_before_the_first_one_is_fetched(tmp_path: Path) -> None:
    ledger = make_ledger(tmp_path)
    kept = [ledger.reserve(name, SIZE) for name in NAMES[:3]]
    with pytest.raises(NoRoomError) as caught:
        make_ledger(tmp_path).reserve(NAMES[3], 10)
    assert "10 bytes" in str(caught.value)
    assert isinstance(kept[0], Incoming)
    kept[0].close()
    assert isinstance(make_ledger(tmp_path).reserve(NAMES[3], 10), Incoming)


def test_a_shard_is_fetched_by_one_at_a_time(tmp_path: Path) -> None:
    first = make_ledger(tmp_path).reserve(NAMES[0], SIZE)
    second = make_ledger(tmp_path).reserve(NAMES[0], SIZE)
    assert isinstance(first, Incoming) and isinstance(second, Busy)
    assert second.arriving.path == first.path and second.arriving.holder == str(os.getpid())
    first.close()
    assert isinstance(make_ledger(tmp_path).reserve(NAMES[0], SIZE), Incoming)


def test_what_is_there_is_not_fetched(tmp_path: Path) -> None:
    ledger = make_ledger(tmp_path)
    put(ledger, tmp_path, NAMES[0])
    assert make_ledger(tmp_path).reserve(NAMES[0], SIZE) is None


@pytest.mark.parametrize("what", ["incoming", "unpacked", "plan"])
def test_files_of_the_dead_are_removed(tmp_path: Path, what: str) -> None:
    ledger = make_ledger(tmp_path)
    put(ledger, tmp_path, NAMES[1])
    dead = {
        "incoming": tmp_path / "incoming" / f"{NAMES[0]}.{3 * SIZE}.1-abc",
        "unpacked": tmp_path / "incoming" / f"{NAMES[0]}.{3 * SIZE}.1-abc.unpacked",
        "plan": tmp_path / "plans" / "1-abc",
    }[what]
    dead.write_bytes(b"y" * 100)
    for name in NAMES[2:5]:
        put(ledger, tmp_path, name)
    assert leftovers(tmp_path) == []
    assert len(shard_files(tmp_path)) == 3


def test_a_file_that_is_read_is_not_evicted_even_when_nobody_plans_it(tmp_path: Path) -> None:
    store = ToyStore()
    entries = fill(store, 3)
    cache = open_cache(store, tmp_path, 3 * SIZE)
    view = cache.open(entries[0])
    old = Folder(tmp_path).path(entries[0].sha256)
    os.utime(old, (0, 0))
    for entry in entries[1:]:
        cache.open(entry)
    ledger = make_ledger(tmp_path)
    for name in NAMES[:2]:
        put(ledger, tmp_path, name)
    assert old.exists() and len(shard_files(tmp_path)) == 3
    with pytest.raises(NoRoomError):
        ledger.reserve(NAMES[2], 3 * SIZE)
    del view
    assert isinstance(ledger.reserve(NAMES[2], 3 * SIZE), Incoming)


def test_plans_of_others_decide_who_goes(tmp_path: Path) -> None:
    ledger, other = make_ledger(tmp_path), make_ledger(tmp_path)
    for name in NAMES[:3]:
        put(ledger, tmp_path, name)
    keys = np.array([int(name[:16], 16) for name in NAMES[:3]], dtype=np.uint64)
    first = np.array([50, 70, 60])
    plan = other.publish(Uses(keys, first, first + 5, 0, 1.0))
    with pytest.raises(NoRoomError):
        ledger.reserve(NAMES[3], SIZE, lambda: 70.0)
    put(ledger, tmp_path, NAMES[3])
    assert {path.name for path in shard_files(tmp_path)} == {NAMES[0], NAMES[2], NAMES[3]}
    plan.move(60, 1.0)
    plan = other.publish(Uses(keys, first, first + 5, 60, 1.0), plan)
    assert len(leftovers(tmp_path)) == 1
    plan.close()
    assert leftovers(tmp_path) == []


def test_files_of_strangers_are_counted_and_go_first(tmp_path: Path) -> None:
    ledger = make_ledger(tmp_path)
    put(ledger, tmp_path, NAMES[0])
    (tmp_path / "zz").mkdir()
    (tmp_path / "zz" / "note.txt").write_bytes(b"n" * 2 * SIZE)
    os.utime(tmp_path / "zz" / "note.txt", (0, 0))
    put(ledger, tmp_path, NAMES[1])
    assert {path.name for path in shard_files(tmp_path)} == set(NAMES[:2])


def test_a_change_within_the_same_tick_of_the_clock_is_seen(tmp_path: Path) -> None:
    ledger = make_ledger(tmp_path, 10**9)
    put(ledger, tmp_path, NAMES[0])
    for number in range(1, 50):
        name = NAMES[0][:2] + f"{number:02x}" * 31
        (Folder(tmp_path).path(name)).write_bytes(b"z" * number)
        assert int(ledger.look().files.sizes.sum()) == SIZE + sum(range(number + 1))


def test_an_old_folder_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = make_ledger(tmp_path, 10**9)
    put(ledger, tmp_path, NAMES[0])
    folder = Folder(tmp_path).path(NAMES[0]).parent
    os.utime(folder, (0, 0))
    ledger.look()
    monkeypatch.setattr(os, "scandir", lambda path: pytest.fail(f"read {path} again"))
    assert ledger.look().files.sizes.tolist() == [SIZE]


def test_a_ledger_that_others_hold_is_given_up_after_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torchrelay.data.cache.lock import hold

    monkeypatch.setattr("torchrelay.data.cache.ledger.LEDGER_PATIENCE_S", 0.02)
    ledger = make_ledger(tmp_path)
    ledger.look()
    with hold(tmp_path / "ledger.lock", 1.0), pytest.raises(TimeoutError, match=r"ledger\.lock"):
        ledger.look()


def test_missing_room_is_told_to_those_who_keep_shards_open(tmp_path: Path) -> None:
    ledger = make_ledger(tmp_path)
    ledger.look()
    os.utime(tmp_path / "ledger.lock", (0, 0))
    kept = [ledger.reserve(name, SIZE) for name in NAMES[:3]]
    with pytest.raises(NoRoomError):
        ledger.reserve(NAMES[3], SIZE, lambda: 100.0)
    assert ledger.pressure() == 0.0
    with pytest.raises(NoRoomError):
        ledger.reserve(NAMES[3], SIZE)
    assert abs(ledger.pressure() - time.time()) < 60 and len(kept) == 3
