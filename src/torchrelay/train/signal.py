"""Asking a running rank to stop: SIGTERM or SIGINT set a flag, and nothing else.

The flag is agreed among all ranks at the next step boundary; work inside a handler would run
at an arbitrary point of a collective.
"""

import signal
from types import FrameType

from torchrelay.core.errors import RankLostError
from torchrelay.core.process import die_with


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


def die_with_launcher(launcher_pid: int | None) -> None:
    """End when the launcher does; nothing where there is none. RankLostError when it is gone already."""
    if launcher_pid is not None and not die_with(launcher_pid):
        raise RankLostError(f"the launcher (process {launcher_pid}) is gone")
