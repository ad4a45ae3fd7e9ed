"""The folder on a local disk where a build keeps what is not in shards yet. One build at a time has it."""

import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torchrelay.core.errors import DataError, ExitCode
from torchrelay.data.build.journal import FILE
from torchrelay.data.build.staging import TEMPORARY

CACHE = "TORCHRELAY_CACHE"
_LOCK = "lock"
_STALE_S = 7 * 86400.0
_TRIES = 100
"""How often a folder may vanish between making it and locking it."""


class HeldError(DataError):
    """Another process has the folder; the same command can succeed when that has ended."""

    exit_code = ExitCode.RETRYABLE


def choose_folder(
    identity: Mapping[str, Any], builds: Path | None, variables: Mapping[str, str] = os.environ
) -> Path:
    """The work folder in `builds` (None: the cache's) of what is asked for; the same gives the same."""
    cache = Path(variables.get(CACHE) or "~/.cache/torchrelay").expanduser()
    text = json.dumps(identity, sort_keys=True, default=str)
    name = hashlib.sha256(text.encode()).hexdigest()[:32]
    return (builds or cache / "builds").absolute() / name


@contextmanager
def hold_folder(folder: Path) -> Iterator[None]:
    """Have the folder alone, made if need be; HeldError when another build has it."""
    descriptor = _lock(folder)
    try:
        for path in folder.iterdir():
            if TEMPORARY in path.name:
                shutil.rmtree(path, ignore_errors=True)
        yield
    finally:
        os.close(descriptor)


def begin_anew(folder: Path) -> None:
    """Remove all that is in the folder but the lock."""
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != _LOCK:
            path.unlink()


def remove_folder(folder: Path) -> None:
    """Remove a folder that we hold; the journal goes first, so that half of one is never taken for whole."""
    (folder / FILE).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def sweep_stale(builds: Path, now_s: float | None = None) -> None:
    """Remove work folders beside ours that nobody has touched for a week and nobody holds."""
    now_s = time.time() if now_s is None else now_s
    for folder in builds.iterdir():
        journal = folder / FILE
        if journal.exists() and now_s - journal.stat().st_mtime > _STALE_S:
            _remove_unheld(folder)


def _remove_unheld(folder: Path) -> None:
    try:
        with hold_folder(folder):
            remove_folder(folder)
    except DataError:
        return  # somebody works there after all


def _lock(folder: Path) -> int:
    """A descriptor that holds the lock until it is closed, or until this process ends."""
    for tried in range(_TRIES):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            # It may have been removed in between by the build that had it.
            if isinstance(error, FileNotFoundError | FileExistsError) and tried + 1 < _TRIES:
                continue
            raise DataError(
                f"cannot use {folder} as the work folder: {error.strerror}",
                hint=f"name a folder on a local disk with --work, or with the variable {CACHE}",
            ) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(descriptor)
            raise HeldError(
                f"another process is making the same build; it holds {folder}",
                hint="wait for it, or stop it and run the command again to go on where it was",
            ) from error
        if _is_there(folder / _LOCK, descriptor):
            return descriptor
        os.close(descriptor)
    raise HeldError(f"others make and remove {folder} all the time", hint="run the command again")


def _is_there(path: Path, descriptor: int) -> bool:
    """Whether the locked file is still the one that others would open."""
    try:
        return os.stat(path).st_ino == os.fstat(descriptor).st_ino
    except FileNotFoundError:
        return False
