from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from tests.unit.checkpoint.support import Trained
from torchrelay.checkpoint.shelf import Shelf
from torchrelay.core.errors import CheckpointError, StoreError
from torchrelay.store.base import Buffer, Writer
from torchrelay.store.files import FileStore


class Failing:
    """A file store that fails where a key holds a word."""

    def __init__(self, store: FileStore, word: str, error: Exception) -> None:
        self._store = store
        self._word = word
        self._error = error

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    def put(self, key: str, data: Buffer, *, if_absent: bool = False) -> None:
        if self._word in key:
            raise self._error
        self._store.put(key, data, if_absent=if_absent)

    def open_writer(self, key: str) -> AbstractContextManager[Writer]:
        return self._half(key) if self._word in key else self._store.open_writer(key)

    @contextmanager
    def _half(self, key: str) -> Iterator[Writer]:
        with self._store.open_writer(key) as writer:
            writer.write(b"half")
            raise self._error
            yield writer


FULL = OSError(28, "No space left on device")


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path)


def failing(store: FileStore, word: str, error: Exception) -> Shelf:
    return Shelf(Failing(store, word, error), "t")  # type: ignore[arg-type]  # all that is used


def test_a_save_is_a_fresh_folder_with_everything_in_the_manifest(store: FileStore) -> None:
    shelf = Shelf(store, "t")
    trained = Trained()
    first, second = trained.save(shelf, 5), trained.save(shelf, 5)
    assert first.checkpoint != second.checkpoint
    assert first.checkpoint.startswith("step-000000005/a-1-")
    assert (first.step, first.samples, first.tokens, first.files) == (5, 40, 400, 2)
    manifest = shelf.read_manifest(first)
    assert set(manifest.tensors) == set(trained.tensors())
    assert manifest.random_states == [{"python": [3, [1, 2], None]}]
    assert manifest.optimizer_groups == [{"lr": 0.01}]


@pytest.mark.parametrize(
    ("word", "error", "message"),
    [
        ("rank-00000.bin", FULL, "rank 0 could not write its part: OSError: .*No space left"),
        ("rank-00000.bin", StoreError("access denied"), "rank 0 could not write its part: access denied"),
        ("manifest.json", FULL, "could not commit step 10: .*No space left"),
        ("COMMITTED", FULL, "could not commit step 10: .*No space left"),
        ("COMMITTED", StoreError("away"), "could not commit step 10: away"),
    ],
)
def test_a_failed_save_leaves_what_was_committed_before(
    store: FileStore, word: str, error: Exception, message: str
) -> None:
    trained = Trained()
    before = trained.save(Shelf(store, "t"), 5)
    with pytest.raises(CheckpointError, match=message) as caught:
        trained.save(failing(store, word, error), 10)
    assert "checkpoint.on_failure" in caught.value.hint
    assert caught.value.exit_code == 1
    assert Shelf(store, "t").usable() == [before]
    assert Shelf(store, "t").verify(before) == []


@pytest.mark.parametrize("word", ["rank-00000.bin", "manifest.json", "COMMITTED"])
def test_a_full_disk_gets_its_space_back_at_once(store: FileStore, tmp_path: Path, word: str) -> None:
    with pytest.raises(CheckpointError):
        Trained().save(failing(store, word, FULL), 10)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_commit_that_may_have_reached_the_store_is_not_deleted(store: FileStore, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError):
        Trained().save(failing(store, "COMMITTED", StoreError("no answer")), 10)
    names = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert names == {"rank-00000.bin", "manifest.json"}


def test_a_failed_save_can_be_repeated(store: FileStore) -> None:
    trained = Trained()
    with pytest.raises(CheckpointError):
        trained.save(failing(store, "rank-00000.bin", FULL), 10)
    commit = trained.save(Shelf(store, "t"), 10)
    assert Shelf(store, "t").verify(commit) == []


def test_one_process_that_saves_alone_is_nothing_to_warn_of(
    store: FileStore, recwarn: pytest.WarningsRecorder
) -> None:
    Trained().save(Shelf(store, "t"), 5)
    assert [str(warning.message) for warning in recwarn] == []
