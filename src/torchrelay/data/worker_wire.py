"""Messages between a rank and its decode workers: a JSON header and raw arrays over a socket pair.

    u32 length of the header | header | the bytes of every array, in the order of header["arrays"]

No pickle, no shared memory: what a process leaves behind when it is killed ends with its socket.
Arrays are received straight into memory of their own.
"""

import json
import socket
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchrelay.core.errors import DataError

_LENGTH = struct.Struct("<I")
_KINDS = "biufc"

Header = dict[str, Any]


def send(connection: socket.socket, header: Header, arrays: Sequence[NDArray[Any]] = ()) -> None:
    """Blocks until the other side has room. DataError for an array that holds no numbers."""
    for array in arrays:
        if array.dtype.kind not in _KINDS:
            raise DataError(f"an array of type {array.dtype} holds no numbers")
    described = [[array.dtype.str, array.shape] for array in arrays]
    text = json.dumps({**header, "arrays": described}).encode()
    connection.sendall(_LENGTH.pack(len(text)) + text)
    for array in arrays:
        if array.nbytes:
            connection.sendall(_bytes(np.asarray(array, order="C")))


def receive(connection: socket.socket) -> tuple[Header, list[NDArray[Any]]]:
    """The next message; EOFError when the other side has gone."""
    (length,) = _LENGTH.unpack(_receive_bytes(connection, _LENGTH.size))
    header: Header = json.loads(_receive_bytes(connection, length))
    arrays = [np.empty(shape, dtype) for dtype, shape in header.pop("arrays")]
    for array in arrays:
        _receive_into(connection, _bytes(array))
    return header, arrays


def _bytes(array: NDArray[Any]) -> memoryview:
    """The memory of a contiguous array."""
    return array.reshape(-1).view(np.uint8).data


def _receive_bytes(connection: socket.socket, length: int) -> bytearray:
    data = bytearray(length)
    _receive_into(connection, memoryview(data))
    return data


def _receive_into(connection: socket.socket, view: memoryview) -> None:
    while view:
        got = connection.recv_into(view)
        if got == 0:
            raise EOFError("the other side has gone")
        view = view[got:]
