"""A process of a build: `python -m torchrelay.data.build.worker FD PARENT`. Started by `pool` alone.

It ignores requests to stop, which are for the process that started it, and dies with that one.
"""

import sys
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

from torchrelay.core.errors import RelayError
from torchrelay.core.process import die_with, leave_stopping_to_parent


def main(arguments: Sequence[str]) -> None:
    """Run the tasks that come until the other side is gone."""
    descriptor, parent = map(int, arguments)
    leave_stopping_to_parent()
    if die_with(parent):
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
