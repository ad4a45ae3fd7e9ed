"""What a process that was started by another one owes it (Linux)."""

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1


def die_with(parent_pid: int) -> bool:
    """Let the kernel kill this process when its parent dies, however that happens.

    False when the parent is gone already: then nobody will.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    return os.getppid() == parent_pid


def leave_stopping_to_parent() -> None:
    """Ignore SIGTERM and SIGINT, which a terminal or scheduler sends to every process of a job.

    The parent starts its children with both blocked, so that they are safe from the first moment on.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGINT))
