"""One decode worker as its parent sees it: a fresh interpreter at the other end of a socket pair.

Never forked: a process that inherits threads and connections of object stores would hang or mix
up their bytes.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing.connection import wait
from types import MappingProxyType
from typing import IO, Final, cast

from torchrelay.data.reader_spec import ReaderSpec, write_spec
from torchrelay.data.worker_wire import send

_KEPT_WORDS = 2000
_ANSWER_S = 1.0
"""How long a stuck worker may take to tell where it is."""
_ENVIRONMENT: Final[Mapping[str, str]] = MappingProxyType(
    {  # one thread each: the workers are the parallelism
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
    }
)


class Worker:
    """A running worker; made by `start_worker`. One thread at a time, but for `kill`."""

    def __init__(self, process: subprocess.Popen[bytes], connection: socket.socket) -> None:
        self.connection = connection
        self._process = process
        self._output = cast(IO[bytes], process.stdout)
        self._words = ""
        self._is_silent = False

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    @property
    def output(self) -> int:
        """Descriptor of what it prints; pass it on with `pass_output` when it is readable."""
        return self._output.fileno()

    def sources(self) -> list[socket.socket | int]:
        """What to listen to: its answers, and what it prints as long as it can."""
        return [self.connection] if self._is_silent else [self.connection, self.output]

    def pass_output(self) -> bool:
        """Write what it printed to our own stderr; False when there is nothing more and never will be."""
        try:
            data = os.read(self.output, 65536)
        except BlockingIOError:
            return True
        text = data.decode(errors="replace")
        self._words = (self._words + text)[-_KEPT_WORDS:]
        sys.stderr.write(text)
        self._is_silent = not data
        return bool(data)

    def ask_where(self) -> None:
        """Let it print where it is, for `last_words`; one that is stopped cannot."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGUSR1)
        until = time.monotonic() + _ANSWER_S
        while (left := until - time.monotonic()) > 0:
            if not wait([self.output], left) or not self.pass_output():
                return
            until = min(until, time.monotonic() + 0.1)  # what follows comes at once

    def last_words(self) -> str:
        """The end of what it printed."""
        return self._words.strip() or "(nothing)"

    def kill(self) -> None:
        """End it at once; it keeps no state. From any thread."""
        self._process.kill()

    def end(self, grace_s: float) -> int:
        """Close the connection, wait until it is gone, and return its exit code; killed after `grace_s`.

        Doing so again changes nothing.
        """
        self.connection.close()
        try:
            code = self._process.wait(grace_s)
        except subprocess.TimeoutExpired:
            self.kill()
            code = self._process.wait()
        if not self._output.closed:
            while wait([self.output], 0) and self.pass_output():
                pass
            self._output.close()
        return code


def start_worker(spec: ReaderSpec) -> Worker:
    """A worker that opens its reader by `spec`; it dies with the thread that calls this (Linux)."""
    ours, theirs = socket.socketpair()
    with theirs, _stop_signals_blocked():
        process = subprocess.Popen(
            [sys.executable, "-m", "torchrelay.data.worker_main", str(theirs.fileno()), str(os.getpid())],
            env=os.environ | _ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(theirs.fileno(),),
        )
    worker = Worker(process, ours)
    os.set_blocking(worker.output, False)
    with suppress(ConnectionError):  # it died already; the first answer that does not come tells
        send(ours, {"spec": write_spec(spec), "path": sys.path})
    return worker


@contextmanager
def _stop_signals_blocked() -> Iterator[None]:
    """A process started inside has them blocked until it ignores them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
