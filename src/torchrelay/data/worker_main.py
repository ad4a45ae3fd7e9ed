"""`python -m torchrelay.data.worker_main DESCRIPTOR PARENT`: one decode worker of a rank.

It keeps no state: it opens the split as its parent did and answers slots with arrays. Requests to
stop are its parent's business, so it ignores them; it dies with its parent, however that dies.
torch is imported only if the user's own code does so.
"""

import faulthandler
import os
import signal
import socket
import sys
import traceback
from dataclasses import astuple
from typing import TYPE_CHECKING, Any

from torchrelay.core.errors import RelayError
from torchrelay.core.process import die_with, leave_stopping_to_parent
from torchrelay.data.figures import name_counts
from torchrelay.data.worker_wire import Header, receive, send

if TYPE_CHECKING:
    from torchrelay.data.loader import SplitReader


def main(descriptor: int, parent: int) -> None:
    """Serve until the parent closes the connection or dies."""
    _settle(parent)
    connection = socket.socket(fileno=descriptor)
    spec, _ = receive(connection)
    sys.path[:] = spec["path"]
    try:
        reader = _open(spec)
    except Exception as error:  # noqa: BLE001 - the outermost frame: the parent raises it
        send(connection, {"number": None, **_described(error)})
        return
    send(connection, {"ready": True, **_counted(reader)})
    while True:
        header, (slots,) = receive(connection)
        _answer(connection, reader, header["number"], slots)


def _settle(parent: int) -> None:
    """Signals as a worker wants them; the parent started it with the requests to stop blocked."""
    if not die_with(parent):
        raise EOFError(f"the parent (process {parent}) is gone")
    leave_stopping_to_parent()
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # how a parent asks where a worker is stuck


def _open(spec: Header) -> "SplitReader":
    from torchrelay.data.loader import open_reader
    from torchrelay.data.reader_spec import parse_spec

    return open_reader(parse_spec(spec["spec"]))


def _answer(connection: socket.socket, reader: "SplitReader", number: int, slots: Any) -> None:
    try:
        rows, sample_ids = reader.read_rows(slots)
    except Exception as error:  # noqa: BLE001 - the outermost frame: the parent raises it
        send(connection, {"number": number, **_counted(reader), **_described(error)})
        return
    header = {
        "number": number,
        "names": list(rows.arrays),
        "targets": rows.num_targets,
        "tokens": rows.num_tokens,
        **_counted(reader),
    }
    try:
        send(connection, header, [*rows.arrays.values(), sample_ids])
    except RelayError as error:
        send(connection, {"number": number, **_described(error)})


def _counted(reader: "SplitReader") -> Header:
    """What reading has cost since the last answer, where it cost anything."""
    figures = reader.figures()
    counts = None if figures is None else name_counts(astuple(figures))
    return {} if counts is None else {"figures": counts}


def _described(error: Exception) -> dict[str, str]:
    """What the parent needs to raise it: our own errors as they are, others with their traceback."""
    if not isinstance(error, RelayError):
        return {"error": "", "message": "".join(traceback.format_exception(error)), "hint": ""}
    cause = "" if error.__cause__ is None else "".join(traceback.format_exception(error.__cause__))
    return {"error": type(error).__name__, "message": error.message, "hint": error.hint, "cause": cause}


if __name__ == "__main__":
    try:
        main(int(sys.argv[1]), int(sys.argv[2]))
    except (EOFError, ConnectionError):  # the parent has closed the connection, or is gone
        pass
    except BaseException:  # noqa: BLE001 - the outermost frame: the parent reads it as last words
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    # Threads of libraries may still run; a worker must not linger.
    os._exit(0)
