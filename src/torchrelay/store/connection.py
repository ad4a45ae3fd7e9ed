"""The way to one bucket: clients of obstore that are made at first use, in the process that uses them.

Never use an object store and fork afterwards: obstore's threads do not survive a fork and the child
would hang (measured, even with a store it opens itself). A guard turns that hang into an error.
Opening a store and forking before its first use is fine.

There are two clients. The one for requests never retries by itself, so that every retry is ours:
counted, told to the observer, under one deadline. The one for uploads in parts retries each part,
which only obstore can do. Safe from any thread.
"""

import functools
import os
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple, Protocol, TypeVar

from obstore import exceptions

from torchrelay.core.errors import RelayError, StoreError
from torchrelay.store.fault import Cause, Fault, explain, read_fault
from torchrelay.store.trial import Observer, Trial

CONNECT_S = 10.0
SILENCE_S = 30.0
"""A request that moves no byte for so long has stalled."""
REQUEST_S = 200.0
PART_S = 120.0
"""Longest time for one part of an upload."""
OBSTORE_ERRORS = (exceptions.BaseError, OSError)

_Result = TypeVar("_Result")


class Clients(NamedTuple):
    """Two clients of one bucket."""

    requests: Any
    uploads: Any


class MakeClient(Protocol):
    """Makes a client of obstore from what every service takes alike."""

    def __call__(self, *, client_options: dict[str, Any], retry_config: dict[str, Any]) -> Any:
        """A new client."""


class Connection:
    """Makes the clients of one store and runs operations on them until they succeed or time is up."""

    def __init__(
        self,
        url: str,
        make: MakeClient,
        *,
        patience_s: float,
        forget_keys: Callable[[], None] | None = None,
        observer: Observer | None = None,
    ) -> None:
        self._url = url
        self._make = make
        self._patience_s = patience_s
        self._forget_keys = forget_keys
        self._observer = observer
        self._lock = threading.Lock()
        self._clients: Clients | None = None
        refuse_after_fork(url)

    def clients(self) -> Clients:
        """The clients, made now if this is the first use; StoreError in a forked child."""
        refuse_after_fork(self._url)
        clients = self._clients
        if clients is not None:
            return clients
        with self._lock:
            if self._clients is None:
                _first_use()
                self._clients = _told(self._build, self._url)
            return self._clients

    def trial(self, action: str, key: str, *, size: int = 0) -> Trial:
        """A fresh count of tries for one operation that sends `size` bytes."""
        where = f"{self._url}/{key}".rstrip("/")
        return Trial(action, where, patience_s=self._patience_s, size=size)

    def run(
        self, trial: Trial, key: str, act: Callable[[Clients], _Result], *, reading: bool = False
    ) -> _Result:
        """What `act` returns, tried until it succeeds or `trial` gives up with a StoreError."""
        try:
            while True:
                clients = self.clients()
                with trial.waiting():
                    result, fault = _attempt(act, clients)
                if fault is None:
                    self.report(trial, key, succeeded=True)
                    return result  # type: ignore[return-value]  # None only with a fault
                self.failed(trial, fault, clients, reading=reading)
        except RelayError:
            self.report(trial, key, succeeded=False)
            raise

    def failed(self, trial: Trial, fault: Fault, clients: Clients, *, reading: bool) -> None:
        """Let `trial` decide; where keys are to be read anew, drop the clients that hold the old ones."""
        trial.failed(fault, reading=reading)
        if fault.cause is Cause.DENIED:
            self.drop(clients)

    def drop(self, clients: Clients) -> None:
        """Make new clients at the next use, with keys that are read anew; once for all who hold `clients`."""
        with self._lock:
            if self._clients is clients:
                self._clients = None
                if self._forget_keys is not None:
                    self._forget_keys()

    def report(self, trial: Trial, key: str, *, succeeded: bool) -> None:
        """Tell the observer that an operation has ended."""
        if self._observer is not None:
            self._observer(trial.outcome(key, succeeded=succeeded))

    def _build(self) -> Clients:
        patience_s = self._patience_s
        connect = {"connect_timeout": _seconds(min(CONNECT_S, patience_s))}
        waiting = {
            "timeout": _seconds(min(REQUEST_S, patience_s)),
            "read_timeout": _seconds(min(SILENCE_S, patience_s)),
        }
        return Clients(
            requests=self._make(
                client_options=connect | waiting,
                retry_config={"max_retries": 0, "retry_timeout": _seconds(patience_s)},
            ),
            uploads=self._make(
                client_options=connect | {"timeout": _seconds(min(PART_S, patience_s))},
                retry_config={"max_retries": 10, "retry_timeout": _seconds(patience_s + PART_S)},
            ),
        )


def _attempt(
    act: Callable[[Clients], _Result], clients: Clients
) -> tuple[_Result, None] | tuple[None, Fault]:
    """The result, or what went wrong; obstore's own error, which may quote a secret, ends here."""
    try:
        return act(clients), None
    except OBSTORE_ERRORS as error:
        return None, read_fault(error)


def _told(build: Callable[[], Clients], url: str) -> Clients:
    """The clients; obstore's refusal of a setup in our words."""
    try:
        return build()
    except (*OBSTORE_ERRORS, ValueError) as error:
        fault = read_fault(error)
    raise explain(fault, url, reading=False, tried="")


def _seconds(seconds: float) -> timedelta:
    return timedelta(seconds=seconds)


@functools.cache
def _first_use() -> int:
    """The process that used an object store first; a forked child inherits the answer."""
    return os.getpid()


def refuse_after_fork(url: str) -> None:
    """StoreError when an object store was used before this process was forked."""
    if _first_use.cache_info().currsize and _first_use() != os.getpid():
        raise StoreError(
            f"{url}: an object store was used before this process was forked, so it cannot use one",
            hint="start worker processes with spawn, not fork",
        )
