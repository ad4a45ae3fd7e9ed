"""Start the ranks of this machine, watch them, and say why they ended.

The launcher never imports torch. It holds the listening socket of the rendezvous store from the
start, so there is no race for a port. When it dies, the kernel kills the ranks (they ask for that
first thing); when a rank dies, the others get `GRACE_S` to end by themselves and are then killed.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import BinaryIO

from torchrelay.core.environment import ERROR_FOLDER, LISTEN_FD, LOG_FOLDER, PARENT_PID
from torchrelay.core.record import ErrorRecord
from torchrelay.launch.cause import Ended, choose_cause, whole_exit_code
from torchrelay.observe.failure import read_announced, read_reports

GRACE_S = 5.0
"""Seconds the other ranks have to end by themselves after one failed."""
_POLL_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How an attempt on this machine ended."""

    exit_code: int
    cause: ErrorRecord | None
    """The first failure, or None."""
    was_killed: bool
    """Whether a second request to stop killed the ranks."""
    run: str | None
    attempt: int
    log: Path | None
    """Log of the rank that failed first."""


@dataclass(slots=True)
class _Ranks:
    """The running processes and what became of the others."""

    running: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)
    ended: list[Ended] = field(default_factory=list)
    killed: dict[int, int] = field(default_factory=dict)
    first_failure_s: float | None = None
    interrupts: int = 0

    def poll(self) -> None:
        """Note who ended since the last look."""
        for rank, process in list(self.running.items()):
            code = process.poll()
            if code is not None:
                del self.running[rank]
                _end_group(process.pid)
                self.ended.append(Ended(rank=rank, code=code, at_s=time.time()))
                if code not in (0, 75) and self.first_failure_s is None:
                    self.first_failure_s = time.monotonic()

    def signal(self, number: int) -> None:
        """Send a signal to every rank that still runs."""
        for process in self.running.values():
            process.send_signal(number)

    def kill(self) -> None:
        """End every rank that still runs, at once, and wait until it is gone."""
        self.signal(signal.SIGKILL)
        for rank, process in self.running.items():
            self.killed[rank] = process.wait()
            _end_group(process.pid)
        self.running.clear()


def _end_group(rank_pid: int) -> None:
    """End what a rank that is gone had started itself; every rank leads a group of its own."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(rank_pid, signal.SIGKILL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What the caller of `run_local` wants done on the way."""

    keep_logs: Callable[[str], Path | None]
    """Where the logs of the run with this id are to lie in the end; None leaves them where they are."""
    tell_request: Callable[[int], None]
    """Called with 1 at the first request to stop, 2 at the second. In a signal handler."""


def run_local(arguments: Sequence[str], *, num_processes: int, wishes: Wishes) -> Outcome:
    """Run `python -m torchrelay.train <arguments>` as `num_processes` ranks until all have ended.

    SIGINT and SIGTERM are passed on once (the ranks save and exit 75); a second one kills.
    Every rank writes `rank-<n>.log` into a temporary folder, which is moved once the run is known:
    an attempt that failed before leaves nothing in the store.
    """
    with ExitStack() as stack:
        errors = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="torchrelay-")))
        logs = Path(tempfile.mkdtemp(prefix="torchrelay-logs-"))
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        ranks = _Ranks()
        stack.callback(ranks.kill)
        stack.enter_context(_passing_signals(ranks, wishes.tell_request))
        for rank in range(num_processes):
            environment = _environment(rank, num_processes, listener, errors, logs)
            log = stack.enter_context((logs / f"rank-{rank:05d}.log").open("ab"))
            with _stop_signals_blocked():
                ranks.running[rank] = _start(arguments, rank, environment, listener, log)
        listener.close()  # only rank 0 may answer on it from now on
        if ranks.interrupts:  # asked to stop while they were being started
            ranks.signal(signal.SIGTERM)
        _watch(ranks)
        return _outcome(ranks, errors, _move_logs(logs, errors, wishes))


def _move_logs(logs: Path, errors: Path, wishes: Wishes) -> Path:
    """Put the logs where they are to lie; where that cannot be written, they stay."""
    announced = read_announced(errors)
    target = wishes.keep_logs(announced[0]) if announced else None
    if target is None:
        return logs
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        return Path(shutil.move(logs, target))
    except OSError:
        return logs


def _watch(ranks: _Ranks) -> None:
    while ranks.running:
        ranks.poll()
        late = ranks.first_failure_s is not None and time.monotonic() - ranks.first_failure_s > GRACE_S
        if late or ranks.interrupts > 1:
            ranks.kill()
        elif ranks.running:
            time.sleep(_POLL_S)


def _start(
    arguments: Sequence[str],
    rank: int,
    environment: Mapping[str, str],
    listener: socket.socket,
    log: BinaryIO,
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "torchrelay.train", *arguments],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=None if rank == 0 else log,  # rank 0 draws the progress bar
        stderr=log,
        pass_fds=(listener.fileno(),) if rank == 0 else (),
        start_new_session=True,  # the terminal's Ctrl-C reaches only the launcher
    )


def _environment(
    rank: int, num_processes: int, listener: socket.socket, errors: Path, logs: Path
) -> dict[str, str]:
    address, port = listener.getsockname()
    environment = dict(os.environ)
    # Without this every rank would start one thread per core.
    environment.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // num_processes)))
    environment |= {
        "RANK": str(rank),
        "WORLD_SIZE": str(num_processes),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(num_processes),
        "MASTER_ADDR": str(address),
        "MASTER_PORT": str(port),
        ERROR_FOLDER: str(errors),
        LOG_FOLDER: str(logs),
        PARENT_PID: str(os.getpid()),
        "PYTHONUNBUFFERED": "1",
    }
    if rank == 0:
        environment[LISTEN_FD] = str(listener.fileno())
    return environment


@contextmanager
def _passing_signals(ranks: _Ranks, tell_request: Callable[[int], None]) -> Iterator[None]:
    def pass_on(number: int, frame: FrameType | None) -> None:
        ranks.interrupts += 1
        tell_request(ranks.interrupts)
        ranks.signal(signal.SIGTERM)

    before = {number: signal.signal(number, pass_on) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


@contextmanager
def _stop_signals_blocked() -> Iterator[None]:
    """A process started inside has them blocked until it is ready to be asked to stop."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _outcome(ranks: _Ranks, errors: Path, logs: Path) -> Outcome:
    cause = choose_cause(ranks.ended, read_reports(errors), socket.gethostname())
    codes = {e.rank: e.code for e in ranks.ended} | ranks.killed
    run, attempt = read_announced(errors) or (None, 0)
    if cause is None and ranks.killed:
        exit_code = 1
    else:
        exit_code = whole_exit_code(codes, cause)
    return Outcome(
        exit_code=exit_code,
        cause=cause,
        was_killed=ranks.interrupts > 1 and bool(ranks.killed),
        run=run,
        attempt=attempt,
        log=logs / f"rank-{cause.rank:05d}.log" if cause else None,
    )
