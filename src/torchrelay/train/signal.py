"""Asking a running rank to stop: SIGTERM or SIGINT set a flag, and nothing else.

The flag is agreed among all ranks at the next step boundary; work inside a handler would run
at an arbitrary point of a collective.
"""

import ctypes
import os
import signal
from types import FrameType

from torchrelay.core.errors import RankLostError

_PR_SET_PDEATHSIG = 1


class StopFlag:
    """Set once by a signal. For the main thread."""

    def __init__(self) -> None:
        self.raised = False

    def install(self) -> None:
        """Take over SIGTERM and SIGINT of this process.

        The launcher starts ranks with both blocked, so that a request which comes while torch is
        still being loaded waits for this moment instead of killing the rank.
        """
        signal.signal(signal.SIGTERM, self._raise)
        signal.signal(signal.SIGINT, self._raise)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGINT))

    def _raise(self, number: int, frame: FrameType | None) -> None:
        self.raised = True


def die_with(parent_pid: int | None) -> None:
    """Let the kernel kill this process when its launcher dies, however that happens (Linux)."""
    if parent_pid is None:
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # it died before we asked
        raise RankLostError(f"the launcher (process {parent_pid}) is gone")
