import socket
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from torchrelay.core.errors import DataError, NotFoundError, RelayError
from torchrelay.data.batch import MicroBatch
from torchrelay.data.figures import Figures
from torchrelay.data.worker_seat import START_S, RemoteCause, Seat, Task, tell_slots
from torchrelay.data.worker_wire import receive, send


@pytest.fixture
def pair() -> Iterator[tuple[Seat, socket.socket]]:
    """A seat, and the worker's end of its connection."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        worker: Any = SimpleNamespace(connection=ours)
        yield Seat(worker, timeout_s=5.0, since_s=100.0), theirs


def task(number: int) -> Task:
    return Task(number, np.arange(4 * number, 4 * number + 4))


def test_opening_may_take_longer_than_a_micro_batch(pair: tuple[Seat, socket.socket]) -> None:
    seat, _ = pair
    assert seat.due_s(0.0) == 100.0 + START_S
    seat.is_ready = True
    assert seat.due_s(0.0) == 105.0
    assert seat.due_s(200.0) == 205.0  # nobody listened before


def test_answers_belong_to_the_first_task(pair: tuple[Seat, socket.socket]) -> None:
    seat, theirs = pair
    send(theirs, {"ready": True})
    assert seat.receive() is None
    assert seat.is_ready
    seat.give(task(7))
    seat.give(task(9))
    for number in (7, 9):
        header, (slots,) = receive(theirs)
        assert (header["number"], slots.tolist()) == (number, task(number).slots.tolist())
    arrays = [np.arange(6.0).reshape(2, 3), np.array([5, -1])]
    send(theirs, {"number": 7, "names": ["x"], "targets": 2, "tokens": 3}, arrays)
    answer = seat.receive()
    assert answer is not None and isinstance(answer.result, MicroBatch)
    assert answer.number == 7
    assert answer.result.tensors["x"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert answer.result.sample_ids.tolist() == [5]
    assert (answer.result.num_targets, answer.result.num_tokens) == (2, 3)
    assert [waiting.number for waiting in seat.tasks] == [9]


def answered(seat: Seat, theirs: socket.socket, header: dict[str, Any]) -> RelayError:
    seat.give(task(7))
    send(theirs, {"number": 7, **header})
    answer = seat.receive()
    assert answer is not None and isinstance(answer.result, RelayError)
    return answer.result


def test_errors_of_torchrelay_stay_what_they_are(pair: tuple[Seat, socket.socket]) -> None:
    error = answered(*pair, {"error": "NotFoundError", "message": "x is missing", "hint": "look"})
    assert isinstance(error, NotFoundError)
    assert (error.message, error.hint, error.__cause__) == ("x is missing", "look", None)


def test_the_cause_of_an_error_is_chained_as_text(pair: tuple[Seat, socket.socket]) -> None:
    error = answered(*pair, {"error": "DataError", "message": "no", "hint": "", "cause": "ValueError: x"})
    assert error.message == "no"
    assert isinstance(error.__cause__, RemoteCause) and str(error.__cause__) == "ValueError: x"


def test_what_reading_cost_is_counted_from_every_answer(pair: tuple[Seat, socket.socket]) -> None:
    seat, theirs = pair
    send(theirs, {"ready": True, "figures": {"misses": 1}})
    assert seat.receive() is None
    answered(seat, theirs, {"error": "DataError", "message": "", "hint": "", "figures": {"hits": 2}})
    seat.give(task(8))
    counts = {"hits": 1, "fetch_seconds": 0.5}
    send(theirs, {"number": 8, "names": [], "targets": 0, "tokens": 0, "figures": counts}, [np.array([1])])
    seat.receive()
    assert seat.meter.take() == Figures(hits=3, misses=1, fetch_seconds=0.5)


@pytest.mark.parametrize("name", ["", "ExitCode", "IntEnum"])
def test_other_errors_come_as_text_with_the_slots(pair: tuple[Seat, socket.socket], name: str) -> None:
    error = answered(*pair, {"error": name, "message": "Traceback ...\nValueError: no\n", "hint": ""})
    assert type(error) is DataError
    assert error.message == (
        "a decode worker failed while reading slots 28, 29, 30, 31:\nTraceback ...\nValueError: no"
    )


def test_a_reader_that_cannot_be_opened_is_raised(pair: tuple[Seat, socket.socket]) -> None:
    seat, theirs = pair
    send(theirs, {"number": None, "error": "DataError", "message": "no such dataset", "hint": ""})
    with pytest.raises(DataError, match="no such dataset"):
        seat.receive()


def test_another_worker_gets_the_same_tasks(pair: tuple[Seat, socket.socket]) -> None:
    seat, theirs = pair
    seat.is_ready = True
    theirs.close()
    seat.give(task(1))  # nobody is there to take it
    seat.give(task(2))
    with pytest.raises((EOFError, ConnectionError)):
        seat.receive()
    ours, others = socket.socketpair()
    with ours, others:
        fresh: Any = SimpleNamespace(connection=ours)
        seat.take_over(fresh)
        assert [receive(others)[0]["number"] for _ in range(2)] == [1, 2]
        assert not seat.is_ready
        assert seat.since_s > 100.0


def test_who_stops_in_the_middle_of_an_answer_is_late(pair: tuple[Seat, socket.socket]) -> None:
    seat, theirs = pair
    seat.worker.connection.settimeout(0.05)
    seat.give(task(1))
    thread = threading.Thread(target=theirs.sendall, args=(b"\x40\x00\x00\x00{",))
    thread.start()
    with pytest.raises(TimeoutError):
        seat.receive()
    thread.join()


def test_few_slots_are_told_and_of_many_the_number() -> None:
    assert tell_slots(np.array([3, 1])) == "slots 3, 1"
    assert tell_slots(np.arange(100)) == "slots 0, 1, 2, 3, 4, 5, 6, 7, … (100 in all)"
