import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.checkpoint.support import Trained, manifest, put
from torchrelay.checkpoint.manifest import Commit
from torchrelay.checkpoint.shelf import Shelf
from torchrelay.core.errors import CheckpointError, DamagedError, StoreError
from torchrelay.store.base import Buffer, Entry, Store, Writer
from torchrelay.store.open import open_store

_numbers = itertools.count()


class Killed(BaseException):
    """The process died here."""


class Fragile:
    """A store whose process is killed before, or right after, its n-th call takes effect; -1 for never."""

    def __init__(self, store: Store, calls: int, *, after: bool = False) -> None:
        self._store = store
        self._left = calls
        self._after = after
        self._dead = False

    @contextmanager
    def _counted(self) -> Iterator[None]:
        if self._dead or (self._left == 1 and not self._after):
            self._dead = True
            raise Killed
        yield
        self._left -= 1
        if self._left == 0:
            self._dead = True
            raise Killed

    def put(self, key: str, data: Buffer, *, if_absent: bool = False) -> None:
        with self._counted():
            self._store.put(key, data, if_absent=if_absent)

    def get(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        with self._counted():
            return self._store.get(key, start=start, length=length)

    def list(self, prefix: str) -> Iterator[Entry]:
        with self._counted():
            return self._store.list(prefix)

    def delete(self, key: str) -> None:
        with self._counted():
            self._store.delete(key)

    @contextmanager
    def open_writer(self, key: str) -> Iterator[Writer]:
        with self._counted(), self._store.open_writer(key) as writer:
            yield writer

    def local_path(self, key: str) -> Path | None:
        return self._store.local_path(key)


@pytest.fixture(params=["file", "memory"])
def shelf(request: pytest.FixtureRequest, tmp_path: Path) -> Shelf:
    url = str(tmp_path) if request.param == "file" else f"memory://shelf-{next(_numbers)}"
    return Shelf(open_store(url), "t")


def keys(shelf: Shelf) -> list[str]:
    return [entry.key.removeprefix(f"{shelf.prefix}/") for entry in shelf.store.list(shelf.prefix)]


def change(shelf: Shelf, key: str, act: Callable[[bytes], bytes]) -> None:
    shelf.store.put(f"{shelf.prefix}/{key}", act(shelf.store.get(f"{shelf.prefix}/{key}")))


def flip(content: bytes, place: int = -1) -> bytes:
    flipped = bytearray(content)
    flipped[place] ^= 1
    return bytes(flipped)


def test_an_empty_shelf_holds_nothing(shelf: Shelf) -> None:
    assert shelf.all() == []
    assert shelf.usable() == []
    assert shelf.prune(keep_last=1, keep_every=None) == []


def test_a_checkpoint_exists_from_its_commit_record_on(shelf: Shelf) -> None:
    new = manifest(5)
    shelf.store.put(f"{shelf.prefix}/{new.checkpoint}/rank-00000.bin", b"weights")
    assert shelf.usable() == []
    commit = shelf.commit(new)
    assert shelf.usable() == [commit]
    assert shelf.read_manifest(commit) == new
    assert shelf.verify(commit) == []


def test_checkpoints_are_listed_oldest_first_and_used_newest_first(shelf: Shelf) -> None:
    for step in (20, 5, 1000):
        put(shelf, step)
    assert [s.commit.step for s in shelf.all()] == [5, 20, 1000]
    assert [c.step for c in shelf.usable()] == [1000, 20, 5]


def test_nothing_is_ever_overwritten(shelf: Shelf) -> None:
    first = put(shelf, 5, "a-1-aa", b"one")
    with pytest.raises(StoreError):
        shelf.commit(manifest(5, "a-1-aa", b"one"))
    second = put(shelf, 5, "a-2-bb", b"two")
    assert (first.number, second.number) == (1, 2)
    assert shelf.usable() == [second, first]
    assert shelf.verify(first) == []


def test_a_commit_that_another_process_made_meanwhile_is_refused(shelf: Shelf) -> None:
    taken = put(shelf, 5)

    class Blind(Shelf):
        def all(self) -> list:
            return []

    new = manifest(5, "a-2-bb", b"other")
    shelf.store.put(f"{shelf.prefix}/{new.checkpoint}/rank-00000.bin", b"other")
    with pytest.raises(CheckpointError, match="committed by another process"):
        Blind(shelf.store, "t").commit(new)
    assert shelf.usable() == [taken]


def test_a_commit_whose_answer_was_lost_and_that_was_repeated_is_a_commit(shelf: Shelf) -> None:
    class Repeating(Fragile):
        """Every create-only write happens twice, as when the first answer is lost on the way."""

        def put(self, key: str, data: Buffer, *, if_absent: bool = False) -> None:
            if if_absent and "COMMITTED" in key:
                shelf.store.put(key, data, if_absent=True)
            shelf.store.put(key, data, if_absent=if_absent)

    commit = put(Shelf(Repeating(shelf.store, -1), "t"), 5)  # type: ignore[arg-type]  # all that is used
    assert shelf.usable() == [commit]


def test_parts_must_be_there_and_whole_before_they_are_committed(shelf: Shelf) -> None:
    new = manifest(5)
    with pytest.raises(CheckpointError, match="rank-00000.bin has None bytes, 7 were written"):
        shelf.commit(new)
    shelf.store.put(f"{shelf.prefix}/{new.checkpoint}/rank-00000.bin", b"weig")
    with pytest.raises(CheckpointError, match="has 4 bytes, 7 were written"):
        shelf.commit(new)
    assert shelf.usable() == []


def test_latest_is_only_a_hint(shelf: Shelf) -> None:
    commit = put(shelf, 5)
    assert "LATEST.json" in keys(shelf)
    for wrong in (b"nonsense", put(shelf, 2).to_bytes()):
        shelf.store.put(f"{shelf.prefix}/LATEST.json", wrong)
        assert shelf.usable()[0] == commit
    shelf.store.delete(f"{shelf.prefix}/LATEST.json")
    assert shelf.usable()[0] == commit


def test_a_store_that_refuses_the_hint_still_has_the_checkpoint(shelf: Shelf) -> None:
    class Hintless(Fragile):
        def put(self, key: str, data: Buffer, *, if_absent: bool = False) -> None:
            if key.endswith("LATEST.json"):
                raise OSError(28, "No space left on device")
            super().put(key, data, if_absent=if_absent)

    commit = put(Shelf(Hintless(shelf.store, -1), "t"), 5)  # type: ignore[arg-type]  # all that is used
    assert shelf.usable() == [commit]


def test_a_quarantined_checkpoint_is_not_used_and_keeps_its_first_reason(shelf: Shelf) -> None:
    old, new = put(shelf, 5), put(shelf, 10)
    shelf.quarantine(new, "a byte was flipped", 0.0)
    shelf.quarantine(new, "something else", 1.0)
    assert shelf.usable() == [old]
    found = shelf.all()[-1]
    assert (found.commit, found.quarantine_reason, found.is_recorded) == (new, "a byte was flipped", True)


def test_a_quarantine_record_that_cannot_be_read_still_counts(shelf: Shelf) -> None:
    new = put(shelf, 10)
    shelf.store.put(f"{shelf.prefix}/{new.quarantine_name}", b"{")
    assert shelf.usable() == []
    assert shelf.all()[0].quarantine_reason == "quarantined; the reason cannot be read"


def test_a_store_that_cannot_take_the_quarantine_record_does_not_stop_the_fallback(shelf: Shelf) -> None:
    new = put(shelf, 10)

    class Full(Fragile):
        def put(self, key: str, data: Buffer, *, if_absent: bool = False) -> None:
            raise OSError(28, "No space left on device")

    Shelf(Full(shelf.store, -1), "t").quarantine(new, "damaged", 0.0)  # type: ignore[arg-type]
    assert shelf.usable() == [new]


def test_a_commit_record_that_cannot_be_read_is_out_of_use_and_named(shelf: Shelf) -> None:
    old, new = put(shelf, 5), put(shelf, 10)
    change(shelf, new.name, lambda content: content[:-4])
    assert shelf.usable() == [old]
    found = shelf.all()[-1]
    assert (found.commit.step, found.commit.number, found.is_recorded) == (10, 1, False)
    assert "COMMITTED-000000000010-1.json is damaged" in (found.quarantine_reason or "")
    assert shelf.verify(found.commit) == ["the commit record COMMITTED-000000000010-1.json cannot be read"]
    shelf.quarantine(found.commit, "unreadable", 0.0)
    assert shelf.all()[-1].is_recorded


def test_the_folder_behind_an_unreadable_commit_record_is_kept_for_a_look(shelf: Shelf) -> None:
    new = put(shelf, 10)
    put(shelf, 15)
    change(shelf, new.name, lambda content: content[:-4])
    shelf.prune(keep_last=1, keep_every=None)
    assert "step-000000010/a-1-aa/rank-00000.bin" in keys(shelf)


@pytest.mark.parametrize(
    ("key", "act", "finding"),
    [
        ("rank-00000.bin", lambda content: content[:-1], "6 bytes instead of 7"),
        ("rank-00000.bin", flip, "rank-00000.bin: checksum"),
        ("manifest.json", flip, "manifest.json was changed"),
        ("manifest.json", lambda content: content[:9], "manifest.json was changed: 9 bytes"),
    ],
)
def test_verify_names_what_is_damaged(
    shelf: Shelf, key: str, act: Callable[[bytes], bytes], finding: str
) -> None:
    commit = put(shelf, 5)
    change(shelf, f"{commit.checkpoint}/{key}", act)
    (found,) = shelf.verify(commit)
    assert finding in found
    assert commit.checkpoint in found


@pytest.mark.parametrize("key", ["rank-00000.bin", "manifest.json"])
def test_verify_names_what_is_missing(shelf: Shelf, key: str) -> None:
    commit = put(shelf, 5)
    shelf.store.delete(f"{shelf.prefix}/{commit.checkpoint}/{key}")
    assert shelf.verify(commit) == [f"{commit.checkpoint}/{key} is missing"]


@given(place=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_no_flipped_bit_of_a_commit_record_goes_unseen(place: int, bit: int) -> None:
    shelf = Shelf(open_store(f"memory://shelf-flip-{next(_numbers)}"), "t")
    good = put(shelf, 5)
    flipped = bytearray(good.to_bytes())
    flipped[place % len(flipped)] ^= 1 << bit
    shelf.store.put(f"{shelf.prefix}/{good.name}", bytes(flipped))
    found = shelf.all()[0]
    if found.quarantine_reason is None and found.commit != good:
        with pytest.raises(DamagedError):
            shelf.read_manifest(found.commit)


def test_a_manifest_of_another_step_is_not_taken(shelf: Shelf) -> None:
    first, second = put(shelf, 5), put(shelf, 10)
    wrong = Commit.from_bytes(first.to_bytes().replace(b"step-000000005", b"step-000000010"), first.name)
    with pytest.raises(DamagedError, match="manifest.json was changed"):
        shelf.read_manifest(wrong)
    assert shelf.read_manifest(second).progress.step == 10


def test_retention_deletes_the_record_first_then_the_folder(shelf: Shelf) -> None:
    for step in (5, 10, 15):
        put(shelf, step)
    order: list[str] = []

    class Watched(Fragile):
        def delete(self, key: str) -> None:
            order.append(key.removeprefix(f"{shelf.prefix}/"))
            super().delete(key)

    gone = Shelf(Watched(shelf.store, -1), "t").prune(keep_last=2, keep_every=None)  # type: ignore[arg-type]
    assert [c.step for c in gone] == [5]
    assert order[0] == "COMMITTED-000000000005-1.json"
    assert sorted(order[1:]) == [
        "step-000000005/a-1-aa/manifest.json",
        "step-000000005/a-1-aa/rank-00000.bin",
    ]
    assert [c.step for c in shelf.usable()] == [15, 10]


def test_attempts_that_never_committed_go_but_a_save_that_is_under_way_stays(shelf: Shelf) -> None:
    shelf.store.put(f"{shelf.prefix}/step-000000005/a-1-dead/rank-00000.bin", b"half")
    shelf.store.put(f"{shelf.prefix}/step-000000010/a-1-late/rank-00000.bin", b"half")
    shelf.store.put(f"{shelf.prefix}/step-000000015/a-1-now/rank-00000.bin", b"half")
    put(shelf, 10)
    shelf.prune(keep_last=1, keep_every=None)
    folders = {key.rsplit("/", 1)[0] for key in keys(shelf) if "/" in key}
    assert folders == {"step-000000010/a-1-aa", "step-000000015/a-1-now"}


def test_quarantined_checkpoints_are_kept_for_a_look(shelf: Shelf) -> None:
    for step in (5, 10, 15):
        commit = put(shelf, step)
        if step == 5:
            shelf.quarantine(commit, "damaged", 0.0)
    shelf.prune(keep_last=1, keep_every=None)
    assert [s.commit.step for s in shelf.all()] == [5, 15]
    assert "step-000000005/a-1-aa/rank-00000.bin" in keys(shelf)


def _calls_of_a_save() -> int:
    counting = Fragile(open_store(f"memory://shelf-count-{next(_numbers)}"), -1)
    shelf = Shelf(counting, "t")  # type: ignore[arg-type]  # all that is used
    Trained().save(shelf, 5)
    shelf.prune(keep_last=1, keep_every=None)
    before = counting._left
    Trained().save(shelf, 10)
    shelf.prune(keep_last=1, keep_every=None)
    return before - counting._left


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_killed_at_any_call_of_a_save_and_prune_the_newest_commit_is_whole(after: bool) -> None:
    trained = Trained()
    calls = _calls_of_a_save()
    assert calls >= 8
    for number in range(1, calls + 1):
        store = open_store(f"memory://shelf-kill-{next(_numbers)}")
        shelf = Shelf(store, "t")
        trained.save(shelf, 5)
        dying = Shelf(Fragile(store, number, after=after), "t")  # type: ignore[arg-type]  # all that is used
        with pytest.raises(Killed):
            trained.save(dying, 10)
            dying.prune(keep_last=1, keep_every=None)
        usable = shelf.usable()
        assert [c.step for c in usable] in ([5], [10, 5], [10]), number
        assert [shelf.verify(c) for c in usable] == [[]] * len(usable), number
        again = trained.save(shelf, 10)
        shelf.prune(keep_last=1, keep_every=None)
        assert shelf.usable() == [again], number
        leftover = {key.rsplit("/", 1)[0] for key in keys(shelf) if "/" in key}
        assert leftover == {again.checkpoint}, number


def test_the_writer_of_a_fragile_store_is_a_context() -> None:
    writer = Fragile(open_store("memory://shelf-writer"), 1).open_writer("a")
    assert isinstance(writer, AbstractContextManager)
    with pytest.raises(Killed), writer:
        pass
