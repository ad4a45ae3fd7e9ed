"""Decode workers that share the micro-batches of a rank; what they give comes in order.

A worker is given whole micro-batches and keeps no state, so which one reads what changes nothing:
one that dies or is stuck is replaced, and its micro-batches are given to the new one.
"""

import sys
import threading
import time
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import wait

from torchrelay.core.errors import DataError, RelayError
from torchrelay.data.batch import MicroBatch
from torchrelay.data.figures import Meter
from torchrelay.data.reader_spec import ReaderSpec
from torchrelay.data.worker import Worker, start_worker
from torchrelay.data.worker_seat import Seat, Slots, Task, tell_slots

ATTEMPTS = 3
"""How often a micro-batch may cost its worker before the run ends."""
_DEPTH = 2
"""Micro-batches a worker has at a time: one under way, one waiting, so that it never waits for us."""
_GRACE_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolLimits:
    """How many workers, and what they may take."""

    workers: int
    timeout_s: float
    """Longest time for one micro-batch; then the worker is replaced."""
    bytes: int
    """Above this many bytes of batches that came too early, only the next one is received."""


class WorkerPool:
    """Reads micro-batches in other processes. `read` is for one thread; `interrupt` for any."""

    def __init__(self, spec: ReaderSpec, limits: PoolLimits, meter: Meter | None = None) -> None:
        """Starts nothing yet. `meter` counts what reading costs the workers."""
        self._meter = meter or Meter()
        self._spec = spec
        self._limits = limits
        self._seats: list[Seat] = []
        self._ready: dict[int, MicroBatch | RelayError] = {}
        self._losses: dict[int, int] = {}
        self._changing = threading.Lock()
        self._interrupted = False
        self.replaced = 0
        """Workers that died or were stuck, so far."""

    def read(self, wanted: Iterable[Slots]) -> Generator[MicroBatch]:
        """The micro-batches of `wanted`, in its order; a few are under way at a time.

        Raises where its micro-batch would have come what a worker raised: errors of torchrelay as they
        are, others as DataError with the worker's traceback. Closing ends all workers.
        """
        tasks = (Task(number, slots) for number, slots in enumerate(wanted))
        number = 0
        try:
            for _ in range(self._limits.workers):
                worker = self._start()
                seat = Seat(worker, self._limits.timeout_s, time.monotonic(), meter=self._meter)
                self._seats.append(seat)
                worker.connection.settimeout(self._limits.timeout_s)
            self._give_out(tasks, number)
            while self._is_coming(number):
                yield self._take(number)
                number += 1
                self._give_out(tasks, number)
        except _Interrupted:
            return
        finally:
            self._end_all()

    def interrupt(self) -> None:
        """Let `read` end soon, from another thread, whatever it waits for."""
        with self._changing:
            self._interrupted = True
            for seat in self._seats:
                seat.worker.kill()

    def pids(self) -> list[int]:
        """The workers' processes."""
        return [seat.worker.pid for seat in self._seats]

    def _start(self) -> Worker:
        with self._changing:
            if self._interrupted:
                raise _Interrupted
            return start_worker(self._spec)

    def _give_out(self, tasks: Iterator[Task], number: int) -> None:
        """At most `_DEPTH` tasks a worker, and no further than that past `number`."""
        stop = number + _DEPTH * len(self._seats)
        while True:
            seat = min(self._seats, key=lambda seat: len(seat.tasks))
            last = max((seat.tasks[-1].number for seat in self._seats if seat.tasks), default=number - 1)
            last = max(last, max(self._ready, default=-1))
            if len(seat.tasks) >= _DEPTH or last + 1 >= stop:
                return
            task = next(tasks, None)
            if task is None:
                return
            seat.give(task)

    def _is_coming(self, number: int) -> bool:
        return number in self._ready or any(seat.tasks for seat in self._seats)

    def _take(self, number: int) -> MicroBatch:
        begun = time.monotonic()
        while number not in self._ready:
            self._listen(number, begun)
        found = self._ready.pop(number)
        self._losses.pop(number, None)
        if isinstance(found, RelayError):
            raise found
        return found

    def _listen(self, number: int, begun: float) -> None:
        """Receive what is there, or wait for it; replace who is dead or late."""
        seats = [seat for seat in self._seats if seat.tasks or not seat.is_ready]
        held = sum(batch.bytes for batch in self._ready.values() if isinstance(batch, MicroBatch))
        if held > self._limits.bytes:
            seats = [seat for seat in seats if any(task.number == number for task in seat.tasks)]
        first = min(seats, key=lambda seat: seat.due_s(begun))
        left = max(0.0, first.due_s(begun) - time.monotonic())
        heard = wait([source for seat in seats for source in seat.worker.sources()], left)
        for seat in seats:
            if seat.worker.output in heard:
                seat.worker.pass_output()
            if seat.worker.connection in heard:
                self._receive(seat)
        if not heard:
            first.worker.ask_where()
            self._replace(first, f"gave no answer for {first.allowance_s:g} s and was killed")

    def _receive(self, seat: Seat) -> None:
        try:
            answer = seat.receive()
        except TimeoutError:
            self._replace(seat, f"stopped in the middle of an answer for {seat.timeout_s:g} s")
        except (EOFError, ConnectionError):
            self._replace(seat, "died", _GRACE_S)
        else:
            if answer is not None:
                self._ready[answer.number] = answer.result

    def _replace(self, seat: Seat, what: str, grace_s: float = 0.0) -> None:
        """Start another worker in its place and give it the same tasks; DataError the third time."""
        old = seat.worker
        code = old.end(grace_s)
        if self._interrupted:
            raise _Interrupted
        self.replaced += 1
        first = seat.tasks[0] if seat.tasks else None
        where = f"reading {tell_slots(first.slots)}" if first else "starting"
        story = f"decode worker {old.pid} {what} (exit code {code}) while {where}"
        self._count_loss(first.number if first else -1, story, old.last_words())
        sys.stderr.write(f"{story}; another takes its place\n")
        seat.take_over(self._start())

    def _count_loss(self, number: int, story: str, words: str) -> None:
        self._losses[number] = self._losses.get(number, 0) + 1
        if self._losses[number] >= ATTEMPTS:
            raise DataError(
                f"{story}, as {ATTEMPTS - 1} before it; its last words: {words}",
                hint="look at these samples, or raise data.worker_timeout; data.skip leaves slots out",
            )

    def _end_all(self) -> None:
        with self._changing:
            seats, self._seats = self._seats, []
        for seat in seats:
            seat.worker.connection.close()  # all at once, so that they end side by side
        until = time.monotonic() + _GRACE_S
        for seat in seats:
            seat.worker.end(max(0.0, until - time.monotonic()))


class _Interrupted(Exception):
    """Somebody asked the pool to end."""
