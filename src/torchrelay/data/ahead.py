"""Reading ahead: a thread does the work of an iterator while its results wait in a bounded box."""

import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Generic, TypeVar

from torchrelay.core.errors import DeadlineError

Item = TypeVar("Item")
THREAD_NAME = "read-ahead"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much may wait, and how long anybody waits."""

    items: int
    """Most items read and not yet taken, at least 1."""
    bytes: int
    """Most bytes of them, but for one item, which is always allowed."""
    wait_s: float
    """Longest wait for one item."""


def read_ahead(items: Generator[Item], size_of: Callable[[Item], int], limits: Limits) -> Generator[Item]:
    """The items in their order, computed by a thread as far ahead as `limits` allow.

    `items` is advanced and closed by the thread alone. Its error is raised where its item would have
    come. Closing waits for the item that is being computed. DeadlineError that tells what the thread
    is doing when an item takes longer than `limits.wait_s`.
    """
    box: _Box[Item] = _Box(items, size_of, limits)
    thread = threading.Thread(target=box.fill, name=THREAD_NAME, daemon=True)
    thread.start()
    try:
        while (taken := box.take(thread)) is not None:
            yield taken[0]
    finally:
        box.close()
        thread.join(limits.wait_s)


class _Box(Generic[Item]):
    """Holds what was read; one thread fills it, another takes."""

    def __init__(self, items: Generator[Item], size_of: Callable[[Item], int], limits: Limits) -> None:
        self._items = items
        self._size_of = size_of
        self._limits = limits
        self._waiting: deque[tuple[Item, int]] = deque()
        self._bytes = 0
        self._changed = threading.Condition()
        self._closed = False
        self._ended = False
        self._error: BaseException | None = None

    def fill(self) -> None:
        """The thread's work: until the items end, fail, or the box is closed."""
        try:
            while self._wait_for_room():
                try:
                    item = next(self._items)
                except StopIteration:
                    break
                self._put(item)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the thread that takes raises it
            self._error = error
        finally:
            self._items.close()
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def take(self, thread: threading.Thread) -> tuple[Item] | None:
        """The next item, or None after the last."""
        with self._changed:
            there = self._changed.wait_for(lambda: self._waiting or self._ended, self._limits.wait_s)
            if self._waiting:
                item, size = self._waiting.popleft()
                self._bytes -= size
                self._changed.notify_all()
                return (item,)
        if not there:
            raise DeadlineError(
                f"the next step's data did not come within {self._limits.wait_s:g} s; the thread that "
                f"reads it is at:\n{_where(thread)}"
            )
        if self._error is not None:
            raise self._error
        return None

    def close(self) -> None:
        """Let the thread end as soon as it can."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _wait_for_room(self) -> bool:
        """False when there is nothing left to do. The coming item is taken to be as large as the last."""
        limits = self._limits

        def is_room() -> bool:
            if not self._waiting:
                return True
            fits = self._bytes + self._waiting[-1][1] <= limits.bytes
            return len(self._waiting) < limits.items and fits

        with self._changed:
            self._changed.wait_for(lambda: self._closed or is_room())
            return not self._closed

    def _put(self, item: Item) -> None:
        size = self._size_of(item)
        with self._changed:
            self._waiting.append((item, size))
            self._bytes += size
            self._changed.notify_all()


def _where(thread: threading.Thread) -> str:
    frame = sys._current_frames().get(thread.ident or 0)
    return "".join(traceback.format_stack(frame)[-6:]) if frame else "(it has ended)"
