"""Processes that run tasks, one at a time each. Spawned, never forked; they die with this process.

They are started with this interpreter as `python -m torchrelay.data.build.worker`, not through
`multiprocessing`, so that a user's main module is not run again in each of them.
"""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple, Protocol

from torchrelay.core.errors import RankLostError

_CLOSE_S = 5.0
"""How long a worker may take to leave before it is killed."""


class Task(Protocol):
    """Something to be done. Can be pickled."""

    @property
    def where(self) -> str:
        """What it is, for errors."""


class Setup(Protocol):
    """What a worker is told once. Can be pickled."""

    def open(self) -> Callable[[Any], Any]:
        """The function that runs tasks; called in the worker."""


class Done(NamedTuple):
    """A task and its result."""

    task: Any
    result: Any


class Pool(Protocol):
    """Runs tasks in any order."""

    @property
    def idle(self) -> int:
        """Tasks that can be given now."""

    @property
    def busy(self) -> int:
        """Tasks that were given and not collected."""

    def submit(self, task: Task) -> None:
        """Give a task; at least one process is idle."""

    def collect(self) -> Sequence[Done]:
        """Wait for at least one result; raises what the task raised."""

    def close(self) -> None:
        """End the processes; what they are doing is lost."""


def run_all(pool: Pool, tasks: Iterable[Task]) -> Iterator[Done]:
    """Run all tasks and close the pool; results come in any order, few tasks are taken ahead."""
    try:
        for task in tasks:
            while not pool.idle:
                yield from pool.collect()
            pool.submit(task)
        while pool.busy:
            yield from pool.collect()
    finally:
        pool.close()


class Inline:
    """Runs every task in this process when it is given."""

    def __init__(self, run: Callable[[Any], Any]) -> None:
        self._run = run
        self._done: list[Done] = []

    @property
    def idle(self) -> int:
        """See `Pool`."""
        return int(not self._done)

    @property
    def busy(self) -> int:
        """See `Pool`."""
        return len(self._done)

    def submit(self, task: Task) -> None:
        """See `Pool`."""
        self._done.append(Done(task, self._run(task)))

    def collect(self) -> Sequence[Done]:
        """See `Pool`."""
        done, self._done = self._done, []
        return done

    def close(self) -> None:
        """See `Pool`."""


class Workers:
    """Several processes. A task whose process died is given to a new one, once."""

    def __init__(self, setup: Setup, count: int) -> None:
        self._setup = setup
        self._count = count
        self._workers: list[_Worker] = []
        self._retried: set[int] = set()
        """`id` of tasks that have lost a process; each is held by its worker until it is done."""

    @property
    def idle(self) -> int:
        """See `Pool`."""
        return self._count - self.busy

    @property
    def busy(self) -> int:
        """See `Pool`."""
        return sum(worker.task is not None for worker in self._workers)

    def submit(self, task: Task) -> None:
        """See `Pool`; starts a process where fewer run than may."""
        worker = next((worker for worker in self._workers if worker.task is None), None)
        if worker is None:
            worker = _start_worker(self._setup)
            self._workers.append(worker)
        worker.give(task)

    def collect(self) -> Sequence[Done]:
        """See `Pool`; RankLostError when a task has lost two processes."""
        done: list[Done] = []
        while not done:
            busy = {worker.connection: worker for worker in self._workers if worker.task is not None}
            for connection in wait(list(busy)):
                worker = busy[connection]  # type: ignore[index]  # only those that were given come back
                answer = worker.take()
                if answer is None:
                    self._replace(worker)
                else:
                    self._retried.discard(id(answer.task))
                    done.append(answer)
        return done

    def close(self) -> None:
        """See `Pool`."""
        for worker in self._workers:
            worker.end()
        self._workers = []

    def _replace(self, worker: "_Worker") -> None:
        code = worker.end()
        self._workers.remove(worker)
        task = worker.task
        if id(task) in self._retried:
            raise RankLostError(
                f"two processes in a row died on {task.where} ({_tell_exit(code)})",
                hint="if memory ran out, use fewer --processes or a smaller --unit-size; run the same "
                "command again to go on",
            )
        self._retried.add(id(task))
        self.submit(task)


class _Worker:
    def __init__(self, process: "subprocess.Popen[bytes]", connection: "Connection[Any, Any]") -> None:
        self._process = process
        self.connection = connection
        self.task: Any = None

    def give(self, task: Any) -> None:
        self.task = task
        try:
            self.connection.send(task)
        except OSError:  # it is dead; `take` finds out
            return

    def take(self) -> Done | None:
        """The result, or None where the process is dead; raises the task's error."""
        try:
            good, result = self.connection.recv()
        except (EOFError, OSError):
            return None
        if not good:
            raise result
        done, self.task = Done(self.task, result), None
        return done

    def end(self) -> int:
        """Kill the process and give its exit code."""
        self._process.kill()
        self.connection.close()
        return self._process.wait(_CLOSE_S)


def _start_worker(setup: Setup) -> _Worker:
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-m", "torchrelay.data.build.worker", str(theirs.fileno()), str(os.getpid())]
    # Tokenizers would start a thread for every core in every process.
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "TOKENIZERS_PARALLELISM": "false",
        "RAYON_NUM_THREADS": "1",
    }
    # Blocked until the worker ignores them: a Ctrl-C reaches the whole group of processes.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        with theirs:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(),), env=environment
            )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    connection: Connection[Any, Any] = Connection(ours.detach())
    worker = _Worker(process, connection)
    try:
        connection.send(setup)
    except OSError:  # it is dead; the first task finds out
        pass
    return worker


def _tell_exit(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    killed = " by the system, perhaps for want of memory" if -code == signal.SIGKILL else ""
    return f"killed with signal {-code}{killed}"
