"""Keys that change while we run: a profile's file that gets new ones, a command that prints them.

obstore asks this source whenever what it holds is about to expire. Keys of a file are read again when
the file has changed; the command of a profile (`credential_process`) is run again some minutes before
its keys expire. Everything that fails is told without what the command printed. Safe from any thread.
"""

import json
import os
import shlex
import subprocess
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from torchrelay.core.clock import Clock, system_clock
from torchrelay.core.errors import StoreError
from torchrelay.store.credentials import credential_files, read_credentials

MARGIN_S = 300.0
"""obstore asks for new keys so long before the ones it has expire."""
RECHECK_S = 60.0
"""How often the files are looked at, and a command is run whose keys are about to expire."""
COMMAND_S = 60.0
_BY_HAND = "run the command of credential_process by hand to see why"


class Keys(NamedTuple):
    """Keys and how long they may be used."""

    values: Mapping[str, str]
    expires_s: float | None
    """Unix time; None for never."""


class KeySource:
    """Called by obstore; returns the credential that it is to use now."""

    def __init__(self, variables: Mapping[str, str], *, clock: Clock = system_clock) -> None:
        self._variables = variables
        self._clock = clock
        self._lock = threading.Lock()
        self._keys: Keys | None = None
        self._read_s = 0.0
        self._stamps: tuple[object, ...] = ()

    def __call__(self) -> dict[str, Any]:
        """The credential as obstore takes it; StoreError when there is none."""
        with self._lock:
            if self._keys is None or self._outdated(self._keys):
                self._stamps = _stamps(credential_files(self._variables))
                self._keys = _read_keys(self._variables)
                self._read_s = self._clock()
            return _as_credential(self._keys, self._clock())

    def forget(self) -> None:
        """Read anew at the next call: the service has refused what we have."""
        with self._lock:
            self._keys = None

    def _outdated(self, keys: Keys) -> bool:
        now_s = self._clock()
        if _stamps(credential_files(self._variables)) != self._stamps:
            return True
        if keys.expires_s is None or now_s < keys.expires_s - MARGIN_S:
            return False
        return now_s >= self._read_s + RECHECK_S or now_s >= keys.expires_s


def _as_credential(keys: Keys, now_s: float) -> dict[str, Any]:
    """What obstore takes; keys that never expire do so for obstore, so that it asks again soon."""
    soon_s = now_s + MARGIN_S + RECHECK_S
    expires_s = soon_s if keys.expires_s is None else min(soon_s, keys.expires_s)
    return {
        "access_key_id": keys.values["access_key_id"],
        "secret_access_key": keys.values["secret_access_key"],
        "token": keys.values.get("session_token"),
        "expires_at": datetime.fromtimestamp(expires_s, UTC),
    }


def _read_keys(variables: Mapping[str, str]) -> Keys:
    found = read_credentials(variables)
    if found.process is not None:
        return _run_command(found.process)
    if not found.keys:
        raise StoreError(
            "the profile has no keys any more", hint="set aws_access_key_id and aws_secret_access_key in it"
        )
    return Keys(found.keys, None)


def _stamps(paths: tuple[Path, ...]) -> tuple[object, ...]:
    """What changes when one of the files is written, replaced, made or deleted."""

    def stamp(path: Path) -> tuple[int, int, int] | None:
        try:
            status = os.stat(path)
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino

    return tuple(stamp(path) for path in paths)


def _run_command(command: str) -> Keys:
    """Run a `credential_process` and read the JSON that it prints."""
    try:
        done = subprocess.run(
            shlex.split(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=COMMAND_S,
            check=False,
        )
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "its quotes do not match"
        raise StoreError(f"credential_process cannot be started: {reason}", hint=_BY_HAND) from None
    except subprocess.TimeoutExpired:
        raise StoreError(f"credential_process did not end within {COMMAND_S:.0f} s", hint=_BY_HAND) from None
    if done.returncode != 0:
        raise StoreError(f"credential_process failed with exit code {done.returncode}", hint=_BY_HAND)
    return _parse_keys(done.stdout)


def _parse_keys(printed: bytes) -> Keys:
    try:
        tree = json.loads(printed)
        values = {"access_key_id": tree["AccessKeyId"], "secret_access_key": tree["SecretAccessKey"]}
        if tree.get("SessionToken"):
            values["session_token"] = tree["SessionToken"]
        expires = tree.get("Expiration")
        expires_s = None if not expires else _parse_moment(expires)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise StoreError(
            "credential_process printed something else than keys",
            hint="it has to print JSON with Version 1, AccessKeyId, SecretAccessKey and perhaps "
            "SessionToken and Expiration",
        ) from None
    return Keys(values, expires_s)


def _parse_moment(text: str) -> float:
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()
