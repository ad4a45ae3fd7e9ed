"""The tries of one operation on an object store: when to try again, when to give up, what to tell.

One budget for all of them: an operation may wait `patience_s` seconds, and more for every byte that
has come. So a service that stalls, or that is slower than `LEAST_BYTES_PER_S` for long, ends in an
error with the measured speed and never in a hang, and a large object over a slow line is still read.
Thread-safe in that every operation has a trial of its own.
"""

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from torchrelay.core.errors import StoreError
from torchrelay.core.units import format_bytes, format_seconds
from torchrelay.store.fault import Cause, Fault, explain

LEAST_BYTES_PER_S = 100_000.0
"""What a store must give in the long run."""
FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 15.0


class Operation(NamedTuple):
    """What an observer of a store is told once an operation has ended, well or not."""

    action: str
    """get, put, list, delete."""
    key: str
    num_bytes: int
    """Bytes that came or went."""
    seconds: float
    """Time spent waiting for the store, pauses between tries included."""
    retries: int
    succeeded: bool


Observer = Callable[[Operation], None]
"""Called from any thread; must be quick and must not raise."""


class Trial:
    """Counts the tries of one operation; made by `Connection.trial`."""

    def __init__(
        self,
        action: str,
        where: str,
        *,
        patience_s: float,
        size: int = 0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.action = action
        self.where = where
        self.num_bytes = 0
        self.retries = 0
        self.spent_s = 0.0
        self.renewed = False
        self._size = size
        self._patience_s = patience_s
        self._clock = clock
        self._sleep = sleep
        self._faults: Counter[str] = Counter()
        self._in_row = 0

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Around everything that waits for the store; what the caller does in between is not counted."""
        began_s = self._clock()
        try:
            yield
        finally:
            self.spent_s += self._clock() - began_s

    def came(self, num_bytes: int) -> None:
        """Count bytes that arrived; StoreError when they come too slowly for too long."""
        self.num_bytes += num_bytes
        self._in_row = 0
        if self.spent_s > self._allowed_s():
            raise StoreError(
                f"{self.where}: too slow{self._tried()}",
                hint=f"a store must give {_speed(LEAST_BYTES_PER_S, 1)} in the long run; check the network",
            )

    def failed(self, fault: Fault, *, reading: bool) -> None:
        """Pause before the next try, or raise when there is no point in one or no time left."""
        self._faults[fault.text] += 1
        if fault.cause is Cause.DENIED and not self.renewed:
            self.renewed = True
            self.retries += 1
            return
        pause_s = self._pause_s()
        if not fault.passes or self.spent_s + pause_s > self._allowed_s():
            tried = self._tried() if fault.passes else ""
            raise explain(fault, self.where, reading=reading, tried=tried)
        self.retries += 1
        self._in_row += 1
        with self.waiting():
            self._sleep(pause_s)

    def outcome(self, key: str, *, succeeded: bool) -> Operation:
        """What an observer is told."""
        moved = self.num_bytes or (self._size if succeeded else 0)
        return Operation(self.action, key, moved, self.spent_s, self.retries, succeeded)

    def _allowed_s(self) -> float:
        return self._patience_s + max(self.num_bytes, self._size) / LEAST_BYTES_PER_S

    def _pause_s(self) -> float:
        longest = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(self._in_row, 20))
        return longest * random.uniform(0.5, 1.0)

    def _tried(self) -> str:
        """What came, how often it was tried and how long."""
        took = format_seconds(self.spent_s)
        came = ""
        if self.num_bytes:
            speed = _speed(self.num_bytes, self.spent_s)
            came = f"; {format_bytes(self.num_bytes)} came in {took}, {speed}"
        if self.retries == 0:
            return came or f"; gave up after {took}"
        seen = ", ".join(f"{count} × {text}" for text, count in self._faults.most_common(4))
        return f"{came}; tried {self.retries + 1} times in {took} ({seen})"


def _speed(num_bytes: float, seconds: float) -> str:
    return f"{format_bytes(num_bytes / max(seconds, 1e-9))}/s"
