import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from torchrelay.core.errors import NotFoundError, RecipeError, StoreError
from torchrelay.observe import rundir
from torchrelay.observe.rundir import (
    AttemptRecord,
    RunRecord,
    claim_attempt,
    create_run,
    free_run,
    list_attempts,
    list_runs,
    newest_run,
    read_run,
    read_run_or_none,
)
from torchrelay.store.files import FileStore


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path)


def run_record(run: str, name: str | None = None) -> RunRecord:
    return RunRecord(
        run=run,
        name=name or run,
        created_s=1.5,
        recipe={"run": {"name": run}},
        recipe_hash="h",
        dataset_version="d",
        micro_batch=4,
        code="0.1",
        environment={"python": "3.11"},
    )


@pytest.fixture
def rank_process() -> Iterator[int]:
    """A living process that looks like a rank."""
    process = subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()", "torchrelay.train"], stdin=subprocess.PIPE
    )
    yield process.pid
    process.communicate()


def leave_attempt(store: FileStore, pid: int, host: str | None = None, process: str | None = None) -> None:
    record = AttemptRecord(
        attempt=1,
        host=host or socket.gethostname(),
        pid=pid,
        started_s=0.0,
        world=2,
        process=rundir._identify(pid) if process is None else process,
    )
    store.put("runs/t/attempts/0001.json", json.dumps(asdict(record)).encode())


def test_a_run_is_read_back_as_it_was_created(store: FileStore) -> None:
    create_run(store, run_record("t"))
    assert read_run(store, "t") == run_record("t")
    assert list_runs(store) == ["t"]


def test_a_run_is_created_once(store: FileStore) -> None:
    create_run(store, run_record("t"))
    with pytest.raises(StoreError, match="started by another process"):
        create_run(store, replace(run_record("t"), code="other"))
    assert read_run(store, "t").code == "0.1"


def test_a_missing_run_is_named_with_the_nearest_one(store: FileStore) -> None:
    create_run(store, run_record("quickstart"))
    with pytest.raises(NotFoundError, match="did you mean 'quickstart'") as caught:
        read_run(store, "quikstart")
    assert "runs there: quickstart" in caught.value.hint
    assert read_run_or_none(store, "quikstart") is None


def test_a_damaged_run_record_is_an_error_and_not_a_new_run(store: FileStore) -> None:
    create_run(store, run_record("t"))
    path = store.local_path("runs/t/run.json")
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(StoreError, match="runs/t/run.json is damaged"):
        newest_run(store, "t")


def test_folders_without_a_run_record_are_no_runs(store: FileStore) -> None:
    store.put("runs/t/logs/1/rank-00000.log", b"x")
    store.put("runs/.probe", b"x")
    assert list_runs(store) == []
    assert newest_run(store, "t") is None


def test_a_fresh_start_takes_the_next_free_id_and_is_the_newest(store: FileStore) -> None:
    assert free_run(store, "t") == "t"
    for expected in ("t", "t-2", "t-3"):
        assert free_run(store, "t") == expected
        create_run(store, run_record(expected, name="t"))
        assert newest_run(store, "t") == expected


def test_a_run_whose_name_looks_like_a_fresh_start_of_another_is_told_apart(store: FileStore) -> None:
    create_run(store, run_record("t", name="t"))
    create_run(store, run_record("t-2", name="t-2"))
    assert newest_run(store, "t") == "t"
    assert newest_run(store, "t-2") == "t-2"
    assert free_run(store, "t") == "t-3"
    create_run(store, run_record("t-3", name="t"))
    assert newest_run(store, "t") == "t-3"


def test_attempts_are_numbered_and_say_who_runs_them(store: FileStore) -> None:
    first = claim_attempt(store, "t", world=2, now_s=10.0)
    second = claim_attempt(store, "t", world=4, now_s=20.0)
    assert list_attempts(store, "t") == [first, second]
    assert (second.attempt, second.world, second.started_s, second.pid) == (2, 4, 20.0, os.getpid())


def test_a_run_that_is_running_here_is_refused(store: FileStore, rank_process: int) -> None:
    leave_attempt(store, rank_process)
    with pytest.raises(RecipeError, match=f"already running here as process {rank_process}") as caught:
        claim_attempt(store, "t", world=1, now_s=1.0)
    assert "stop it first" in caught.value.hint
    assert len(list_attempts(store, "t")) == 1


def test_a_run_whose_process_is_gone_goes_on(store: FileStore) -> None:
    process = subprocess.Popen([sys.executable, "-c", "pass", "torchrelay.train"])
    process.wait()
    leave_attempt(store, process.pid)
    assert claim_attempt(store, "t", world=1, now_s=1.0).attempt == 2


def test_a_process_of_another_host_is_not_judged(store: FileStore, rank_process: int) -> None:
    leave_attempt(store, rank_process, host="another-host")
    assert claim_attempt(store, "t", world=1, now_s=1.0).attempt == 2


def test_of_two_starts_at_the_same_moment_one_is_refused(store: FileStore) -> None:
    class Slow:
        """Lists no attempts, as another process wrote its one just after."""

        def __getattr__(self, name: str) -> object:
            return getattr(store, name)

        def list(self, prefix: str) -> Iterator[object]:
            return iter([])

    claim_attempt(store, "t", world=1, now_s=1.0)
    with pytest.raises(StoreError, match="at the same moment"):
        claim_attempt(Slow(), "t", world=1, now_s=2.0)  # type: ignore[arg-type]  # only what is needed
    assert list_attempts(store, "t")[0].started_s == 1.0


def test_a_deleted_run_neither_hides_later_ones_nor_gives_its_id_away(store: FileStore) -> None:
    for run in ("t", "t-2", "t-3"):
        create_run(store, run_record(run, name="t"))
    for gone in ("t", "t-2"):
        store.delete(f"runs/{gone}/run.json")
    assert newest_run(store, "t") == "t-3"
    assert free_run(store, "t") == "t-4"


def test_a_recycled_process_number_does_not_block_a_run(store: FileStore, rank_process: int) -> None:
    create_run(store, run_record("t"))
    leave_attempt(store, rank_process, process="another-boot/1")
    assert claim_attempt(store, "t", world=1, now_s=0.0).attempt == 2
