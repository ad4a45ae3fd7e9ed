import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest

from torchrelay.core.errors import DataError, RankLostError
from torchrelay.data.build.pool import Done, Inline, Pool, Workers, run_all


class Wanted(NamedTuple):
    """A task of these tests; what it does depends on its word."""

    word: str
    marker: str = ""

    @property
    def where(self) -> str:
        return f"task {self.word}"


@dataclass(frozen=True)
class Setup:
    prefix: str = ""

    def open(self) -> Callable[[Wanted], object]:
        return self.run

    def run(self, task: Wanted) -> object:
        if task.word == "bad":
            raise DataError("bad input", hint="mend it")
        if task.word == "die" or (task.word == "die once" and not Path(task.marker).exists()):
            Path(task.marker).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if task.word == "pid":
            return os.getpid()
        if task.word == "signals":
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGINT)
        if task.word == "environment":
            return os.environ["TOKENIZERS_PARALLELISM"]
        return f"{self.prefix}{task.word}"


@pytest.fixture(params=["here", "two"])
def pool(request: pytest.FixtureRequest) -> Pool:
    return Inline(Setup("+").open()) if request.param == "here" else Workers(Setup("+"), 2)


def test_every_task_comes_back_with_its_result(pool: Pool) -> None:
    tasks = [Wanted(str(number)) for number in range(20)]
    done = list(run_all(pool, tasks))
    assert sorted(done) == sorted(Done(task, f"+{task.word}") for task in tasks)
    assert pool.busy == 0


def test_an_error_comes_over_with_its_hint(pool: Pool) -> None:
    with pytest.raises(DataError, match="bad input") as caught:
        list(run_all(pool, [Wanted("a"), Wanted("bad")]))
    assert caught.value.hint == "mend it"


def test_few_tasks_are_taken_ahead() -> None:
    taken: list[int] = []

    def tasks() -> object:
        for number in range(6):
            taken.append(number)
            yield Wanted(str(number))

    results = run_all(Workers(Setup(), 2), tasks())  # type: ignore[arg-type]
    next(results)
    assert len(taken) <= 3
    results.close()  # type: ignore[attr-defined]


def test_a_task_whose_process_died_is_run_again(tmp_path: Path) -> None:
    task = Wanted("die once", str(tmp_path / "marker"))
    assert list(run_all(Workers(Setup(), 1), [task])) == [Done(task, "die once")]


def test_a_task_that_kills_two_processes_is_named(tmp_path: Path) -> None:
    with pytest.raises(RankLostError) as caught:
        list(run_all(Workers(Setup(), 1), [Wanted("die", str(tmp_path / "marker"))]))
    assert "two processes in a row died on task die (killed with signal 9" in caught.value.message
    assert "--processes" in caught.value.hint


def test_requests_to_stop_are_for_the_main_process_alone() -> None:
    assert [done.result for done in run_all(Workers(Setup(), 1), [Wanted("signals")])] == ["signals"]


def test_tokenizers_start_no_threads_of_their_own() -> None:
    assert [done.result for done in run_all(Workers(Setup(), 1), [Wanted("environment")])] == ["false"]


def test_closing_ends_the_processes() -> None:
    pool = Workers(Setup(), 2)
    pool.submit(Wanted("pid"))
    pool.submit(Wanted("pid"))
    pids: set[object] = set()
    while pool.busy:
        pids |= {done.result for done in pool.collect()}
    assert len(pids) == 2
    pool.close()
    deadline = time.monotonic() + 5
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < deadline
