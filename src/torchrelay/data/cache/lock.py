"""Locks of the kernel on open files: they end with the process, whatever kills it, and leave nothing.

A lock belongs to the opened file, not to the process: two threads that open a file each have
a lock each, and a mapping of the file keeps the lock of the descriptor it was made from.
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_FIRST_POLL_S, _LAST_POLL_S = 0.0002, 0.01


def try_lock(descriptor: int, *, exclusive: bool) -> bool:
    """Lock an open file if that is possible now; a second call changes the kind of the lock."""
    kind = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def unlock(descriptor: int) -> None:
    """Give the lock up before the file is closed."""
    fcntl.flock(descriptor, fcntl.LOCK_UN)


def is_locked(path: Path) -> bool:
    """Whether somebody alive holds an exclusive lock on the file; FileNotFoundError when it is gone."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return not try_lock(descriptor, exclusive=False)
    finally:
        os.close(descriptor)


@contextmanager
def hold(path: Path, patience_s: float) -> Iterator[None]:
    """Hold the exclusive lock of the file `path`, which is created where it is missing.

    TimeoutError after `patience_s`; other OSErrors when the folder is missing or cannot be written.
    """
    descriptor = _lock_within(path, patience_s)
    try:
        yield
    finally:
        os.close(descriptor)


def _lock_within(path: Path, patience_s: float) -> int:
    deadline, pause_s = time.monotonic() + patience_s, _FIRST_POLL_S
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            if try_lock(descriptor, exclusive=True) and is_same(path, descriptor):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # held by another, or the file was deleted in between
        if time.monotonic() > deadline:
            raise TimeoutError(f"another process has held {path} for {patience_s:.0f} s")
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LAST_POLL_S)


def is_same(path: Path, descriptor: int) -> bool:
    """Whether `path` still names the file that is open."""
    try:
        found, opened = path.stat(), os.fstat(descriptor)
    except FileNotFoundError:
        return False
    return (found.st_ino, found.st_dev) == (opened.st_ino, opened.st_dev)
