"""Try everything on a store that torchrelay will want to do with it, and leave nothing behind.

Each check says what it needs (the permission's name at the service) and what it is needed for. A store
that cannot be reached at all, or whose keys, bucket, region or clock are wrong, is told by the error of
the first check, and nothing else is tried.
"""

import os
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from torchrelay.core.errors import AlreadyExistsError, NotFoundError, StoreError
from torchrelay.store.base import Entry, Store
from torchrelay.store.objects import PART_BYTES
from torchrelay.store.open import QUICK_S, leaving_no_folder, open_store

SMALL_BYTES = 4096
LARGE_BYTES = PART_BYTES + 4 * 2**20
"""Two parts of an upload."""
READ_BYTES = 4 * 2**20
"""Most that is read of an object that was there before."""
PATIENCE_S = 60.0
CLOCK_S = 300.0
"""A difference of clocks that is told; services refuse requests from 900 s on."""


class Finding(NamedTuple):
    """What one check showed."""

    check: str
    works: bool
    seconds: float
    num_bytes: int
    """Bytes that were moved; 0 where speed does not matter."""
    permission: str
    needed_for: str
    problem: str
    hint: str

    @property
    def bytes_per_s(self) -> float | None:
        """Measured speed, where enough was moved to measure it."""
        return self.num_bytes / self.seconds if self.num_bytes > 10**6 and self.seconds > 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing to try; `act` returns the bytes that it moved and raises StoreError when it does not work."""

    name: str
    act: Callable[[], int]
    needed_for: str
    action: str
    """list, get, put or delete: what a service gives permission for."""


_PERMISSIONS = {
    "s3": {
        "list": "s3:ListBucket",
        "get": "s3:GetObject",
        "put": "s3:PutObject",
        "delete": "s3:DeleteObject",
    },
    "gs": {name: f"storage.objects.{name}" for name in ("list", "get", "delete")}
    | {"put": "storage.objects.create"},
    "az": {"list": "blobs/read", "get": "blobs/read", "put": "blobs/write", "delete": "blobs/delete"},
}


def check_store(url: str, *, read_only: bool) -> Iterator[Finding]:
    """Try `url` and yield what each check showed; after the last one nothing of ours is left there.

    With `read_only` only what is there already is listed and read.
    """
    permissions = _PERMISSIONS.get(url.partition("://")[0], {})
    first = _run(_reach(open_store(url, retry_s=QUICK_S)), permissions)
    yield first
    store = open_store(url, retry_s=PATIENCE_S)
    if read_only:
        if first.works:
            yield from (_run(check, permissions) for check in _reading(store))
        return
    if not first.works and not _is_denied(first):
        return
    with leaving_no_folder(store):
        yield from _try_all(store, permissions)


def _try_all(store: Store, permissions: dict[str, str]) -> Iterator[Finding]:
    probe = _Probe(store)
    try:
        for check in probe.checks():
            finding = _run(check, permissions)
            yield finding
            if not finding.works and check.name in ("write", "delete"):
                return  # nothing can be tried without writing, or without being able to clean up
    finally:
        probe.clean()


def _run(check: Check, permissions: dict[str, str]) -> Finding:
    began_s = time.monotonic()
    num_bytes, problem, hint = 0, "", ""
    try:
        num_bytes = check.act()
    except StoreError as error:
        problem, hint = error.message, error.hint
    except OSError as error:
        problem, hint = f"{error.strerror}", "free some space, or choose another place"
    return Finding(
        check=check.name,
        works=not problem,
        seconds=time.monotonic() - began_s,
        num_bytes=num_bytes,
        permission=permissions.get(check.action, ""),
        needed_for=check.needed_for,
        problem=problem,
        hint=hint,
    )


def _is_denied(finding: Finding) -> bool:
    """Whether the keys are good and only this one action is forbidden."""
    return "AccessDenied" in finding.problem


def _reach(store: Store) -> Check:
    def act() -> int:
        list(store.list_folders(""))
        return 0

    return Check(name="list", act=act, needed_for="finding datasets, runs and checkpoints", action="list")


class _Probe:
    """The checks that write, and the objects that they make."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._folder = f".relay-check-{uuid.uuid4().hex}"
        self._small = os.urandom(SMALL_BYTES)
        self._large = os.urandom(LARGE_BYTES)

    def checks(self) -> list[Check]:
        """In the order in which they are to be run."""
        writing = "building datasets, checkpoints, the journal"
        rows: list[tuple[str, Callable[[], int], str, str]] = [
            ("write", self._write, writing, "put"),
            ("delete", self._delete, "keeping only the newest checkpoints, torchrelay data gc", "delete"),
            ("read", self._read, "everything", "get"),
            ("create only", self._create, "committing checkpoints and dataset versions", "put"),
            ("race of two", self._race, "two processes that commit at once", "put"),
            ("large object", self._upload, "checkpoints, shards", "put"),
            ("part of one", self._range, "reading shards in pieces, going on after a cut connection", "get"),
            ("clock", self._clock, "signing requests", "list"),
        ]
        return [
            Check(name=name, act=act, needed_for=needed_for, action=action)
            for name, act, needed_for, action in rows
        ]

    def clean(self) -> None:
        """Delete what the checks made."""
        for name in ("small", "claim", "race", "large"):
            with suppress(StoreError, OSError):
                self._store.delete(self._key(name))

    def _key(self, name: str) -> str:
        return f"{self._folder}/{name}"

    def _write(self) -> int:
        self._store.put(self._key("small"), self._small)
        return SMALL_BYTES

    def _delete(self) -> int:
        try:
            self._store.delete(self._key("small"))
        except StoreError as error:
            raise StoreError(f"{error.message}; that object is left there", hint=error.hint) from error
        with suppress(NotFoundError):
            self._store.get(self._key("small"))
            raise StoreError("an object is still there after it was deleted", hint=_OTHER_STORE)
        return 0

    def _read(self) -> int:
        self._write()
        _expect(self._store.get(self._key("small")) == self._small, "other bytes came back than were written")
        return SMALL_BYTES

    def _create(self) -> int:
        self._store.put(self._key("claim"), b"first", if_absent=True)
        try:
            self._store.put(self._key("claim"), b"second", if_absent=True)
        except AlreadyExistsError:
            return 0
        raise StoreError(
            "a second write that must not replace the first did so: If-None-Match is ignored",
            hint=_OTHER_STORE,
        )

    def _race(self) -> int:
        def claim(content: bytes) -> bool:
            try:
                self._store.put(self._key("race"), content, if_absent=True)
            except AlreadyExistsError:
                return False
            return True

        with ThreadPoolExecutor(2) as pool:
            winners = sum(pool.map(claim, (b"one", b"two")))
        _expect(winners == 1, f"{winners} of two writers that created one object at once were told they did")
        return 0

    def _upload(self) -> int:
        with self._store.open_writer(self._key("large")) as writer:
            writer.write(self._large)
        return LARGE_BYTES

    def _range(self) -> int:
        start = 2**20 + 1
        part = self._store.get(self._key("large"), start=start, length=LARGE_BYTES - 2 * start)
        _expect(part == self._large[start:-start], "other bytes came back than were written")
        return len(part)

    def _clock(self) -> int:
        self._write()
        entry = next(entry for entry in self._store.list(self._folder) if entry.key == self._key("small"))
        ahead_s = time.time() - entry.modified_s
        if abs(ahead_s) > CLOCK_S:
            raise StoreError(
                f"the clock of this machine is {abs(ahead_s):.0f} s {'ahead' if ahead_s > 0 else 'behind'}",
                hint="set it, for example with chrony; services refuse requests from 900 s on",
            )
        return 0


def _reading(store: Store) -> list[Check]:
    """Checks that only read what is there."""

    def some_object() -> Entry:
        prefix = ""
        while folders := store.list_folders(prefix):  # a listing of everything may be long
            prefix = f"{prefix}/{folders[0]}".lstrip("/")
        found = next((entry for entry in store.list(prefix) if entry.size > 1), None)
        if found is None:
            raise StoreError("there is no object to read", hint="name a prefix that holds some")
        return found

    def read() -> int:
        entry = some_object()
        length = min(entry.size, READ_BYTES)
        _expect(len(store.get(entry.key, length=length)) == length, f"{entry.key} is not {entry.size} bytes")
        return length

    def read_range() -> int:
        entry = some_object()
        half = store.get(entry.key, start=entry.size // 2, length=1)
        _expect(len(half) == 1, f"a part of {entry.key} did not come")
        return 1

    return [
        Check(name="read", act=read, needed_for="everything", action="get"),
        Check(name="part of one", act=read_range, needed_for="reading shards in pieces", action="get"),
    ]


_OTHER_STORE = "torchrelay cannot keep its promises on this service; use another one"


def _expect(condition: bool, problem: str) -> None:  # noqa: FBT001 - reads like an assertion
    if not condition:
        raise StoreError(problem, hint=_OTHER_STORE)
