"""A process of a build: `python -m torchrelay.data.build.worker FD PARENT`. Started by `pool` alone.

It ignores requests to stop, which are for the process that started it, and dies with that one.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

from torchrelay.core.errors import RelayError

_PR_SET_PDEATHSIG = 1


def main(arguments: Sequence[str]) -> None:
    """Run the tasks that come until the other side is gone."""
    descriptor, parent = map(int, arguments)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM))
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == parent:  # else it died before we asked
        serve(Connection(descriptor))


def serve(connection: "Connection[Any, Any]") -> None:
    """Answer every task with (True, result) or (False, error)."""
    try:
        setup = connection.recv()
        run: Callable[[Any], Any] | None = None
        while True:
            task = connection.recv()
            try:
                run = run or setup.open()
                answer = (True, run(task))
            except (RelayError, OSError, MemoryError) as error:
                answer = (False, error)
            connection.send(answer)
    except (EOFError, ConnectionError):
        return


if __name__ == "__main__":
    main(sys.argv[1:])
