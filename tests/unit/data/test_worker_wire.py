import socket
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from torchrelay.core.errors import DataError
from torchrelay.data.worker_wire import receive, send

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    first, second = socket.socketpair()
    with first, second:
        yield first, second


def passed(pair: Pair, header: dict[str, Any], arrays: list[Any]) -> tuple[dict[str, Any], list[Any]]:
    thread = threading.Thread(target=send, args=(pair[0], header, arrays))
    thread.start()
    got = receive(pair[1])
    thread.join()
    return got


_arrays = arrays_of.arrays(
    dtype=st.sampled_from(["u1", "<i2", "<i8", "<f2", "<f4", ">f8", "?", "<c16"]),
    shape=arrays_of.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
)


@settings(max_examples=50, deadline=None)
@given(header=st.dictionaries(st.text(max_size=5), st.integers()), arrays=st.lists(_arrays, max_size=4))
def test_what_is_sent_arrives(pair: Pair, header: dict[str, int], arrays: list[Any]) -> None:
    header.pop("arrays", None)
    got, received = passed(pair, header, arrays)
    assert got == header
    assert len(received) == len(arrays)
    for array, other in zip(arrays, received, strict=True):
        assert (other.dtype, other.shape) == (array.dtype, array.shape)
        assert other.tobytes() == array.tobytes()
        assert other.flags.writeable


def test_an_array_larger_than_any_buffer_and_one_with_gaps_arrive(pair: Pair) -> None:
    large = np.arange(3_000_000, dtype=np.int64)
    _, (first, second) = passed(pair, {}, [large, large.reshape(1000, 3000)[:, 1::7]])
    assert np.array_equal(first, large)
    assert np.array_equal(second, large.reshape(1000, 3000)[:, 1::7])


def test_what_holds_no_numbers_is_refused_before_anything_is_sent(pair: Pair) -> None:
    with pytest.raises(DataError, match="an array of type <U4 holds no numbers"):
        send(pair[0], {"a": 1}, [np.zeros(2), np.array("word")])
    assert passed(pair, {"b": 2}, []) == ({"b": 2}, [])


def test_the_end_of_the_other_side_is_told() -> None:
    first, second = socket.socketpair()
    with second:
        first.sendall(b"\x05\x00\x00\x00{")
        first.close()
        with pytest.raises(EOFError):
            receive(second)
