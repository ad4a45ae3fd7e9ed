"""A place in a pool of decode workers, whoever holds it: its tasks, its patience, its answers."""

import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchrelay.core import errors
from torchrelay.core.errors import DataError, RelayError
from torchrelay.data.batch import MicroBatch, make_batch
from torchrelay.data.figures import Meter
from torchrelay.data.readings.rows import Rows
from torchrelay.data.worker import Worker
from torchrelay.data.worker_wire import Header, receive, send

START_S = 120.0
"""Longest time a worker may take to open its reader, where `timeout_s` is not longer."""

Slots = NDArray[np.int64]


class Task(NamedTuple):
    """One micro-batch to read."""

    number: int
    """Place among all micro-batches."""
    slots: Slots


class RemoteCause(Exception):
    """What led to an error of a worker, as its traceback tells it."""


class Answer(NamedTuple):
    """What became of a task."""

    number: int
    result: MicroBatch | RelayError


@dataclass(slots=True)
class Seat:
    """A worker and what it was given. One thread at a time."""

    worker: Worker
    timeout_s: float
    """Longest time for one micro-batch."""
    since_s: float
    """When its worker began with the first task, or was started."""
    tasks: deque[Task] = field(default_factory=deque)
    """Given and not answered; the first is under way."""
    is_ready: bool = False
    """Whether its worker has opened its reader."""
    meter: Meter = field(default_factory=Meter)
    """Counts what reading costs its workers."""

    @property
    def allowance_s(self) -> float:
        """How long its worker may take for what it does now."""
        return self.timeout_s if self.is_ready else max(START_S, self.timeout_s)

    def due_s(self, begun: float) -> float:
        """When its worker is late, for somebody who has listened since `begun`.

        Nobody is late for what was done while nobody listened.
        """
        return max(self.since_s, begun) + self.allowance_s

    def give(self, task: Task) -> None:
        """One more task."""
        if not self.tasks and self.is_ready:
            self.since_s = time.monotonic()
        self.tasks.append(task)
        self._hand_over(task)

    def take_over(self, worker: Worker) -> None:
        """Put another worker in; it is given the same tasks."""
        worker.connection.settimeout(self.timeout_s)
        self.worker, self.since_s, self.is_ready = worker, time.monotonic(), False
        for task in self.tasks:
            self._hand_over(task)

    def receive(self) -> Answer | None:
        """What its worker says; None when it says that it is ready.

        TimeoutError when it stops in the middle, EOFError or ConnectionError when it is gone, RelayError
        when it cannot open its reader.
        """
        header, arrays = receive(self.worker.connection)
        self.since_s = time.monotonic()
        if "figures" in header:
            self.meter.add(**header["figures"])
        if "ready" in header:
            self.is_ready = True
            return None
        if header["number"] is None:
            raise _raised(header, "opening the data")
        return Answer(header["number"], _opened(header, arrays, self.tasks.popleft()))

    def _hand_over(self, task: Task) -> None:
        try:
            send(self.worker.connection, {"number": task.number}, [task.slots])
        except (ConnectionError, TimeoutError):  # it is dead or stuck: found out when its answer is due
            pass


def tell_slots(slots: Slots) -> str:
    """A few of them, for people."""
    shown = ", ".join(map(str, slots[:8].tolist()))
    return f"slots {shown}" if slots.size <= 8 else f"slots {shown}, … ({slots.size} in all)"


def _opened(header: Header, arrays: list[NDArray[Any]], task: Task) -> MicroBatch | RelayError:
    if "error" in header:
        return _raised(header, f"reading {tell_slots(task.slots)}")
    *values, sample_ids = arrays
    rows = Rows(dict(zip(header["names"], values, strict=True)), header["targets"], header["tokens"])
    return make_batch(rows, sample_ids)


def _raised(header: Header, where: str) -> RelayError:
    kind = getattr(errors, header["error"], None)
    if isinstance(kind, type) and issubclass(kind, RelayError):
        error: RelayError = kind(header["message"], hint=header["hint"])
        error.__cause__ = RemoteCause(header["cause"]) if header.get("cause") else None
        return error
    return DataError(f"a decode worker failed while {where}:\n{header['message'].rstrip()}")
