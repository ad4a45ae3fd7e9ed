"""Objects of a bucket, or of memory, through obstore; `s3://`, `gs://`, `az://`, `memory://`.

What this adds to obstore: keys and errors as every store of ours has them, one deadline and counted
retries for every operation (`trial`), a guard against use after a fork (`connection`), reads that go
on where they were cut off (`download`). Safe from any thread.

Keys, endpoint and region come from the environment or a profile; a recipe never holds them.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import obstore

from torchrelay.core.errors import AlreadyExistsError, NotFoundError, StoreError
from torchrelay.store.base import Buffer, Entry, check_key, check_prefix
from torchrelay.store.connection import OBSTORE_ERRORS, Clients, Connection
from torchrelay.store.download import Download
from torchrelay.store.fault import explain, read_fault
from torchrelay.store.trial import Trial

PART_BYTES = 16 * 2**20
"""A larger object is sent in parts of this size."""
PARTS_AT_ONCE = 8
_SMALL_BYTES = 2**20
"""Sent in one request that may be given up after `connection.SILENCE_S`."""


class ObjectWriter:
    """Appends to a multipart upload; `ObjectStore.open_writer` completes it when all went well."""

    def __init__(self, upload: Any, trial: Trial) -> None:
        self._upload = upload
        self._trial = trial

    def write(self, data: Buffer) -> None:
        """Append all of `data`."""
        with _told(self._trial):
            self._upload.write(data)
        self._trial.num_bytes += memoryview(data).nbytes


class ObjectStore:
    """Objects under `prefix` of a bucket, or of memory."""

    def __init__(self, url: str, connection: Connection, prefix: str) -> None:
        self._url = url
        self._connection = connection
        self._prefix = f"{prefix}/" if prefix else ""

    @property
    def url(self) -> str:
        """`scheme://bucket/prefix`."""
        return self._url

    def local_path(self, key: str) -> Path | None:
        """Objects of this store are not files of this machine."""
        return None

    def put(self, key: str, data: Buffer, *, if_absent: bool = False) -> None:
        """See `Store.put`.

        Where an answer is lost, what lies there afterwards tells whether the write went through: of
        several writers that create one key with the same bytes, more than one may take itself for the first.
        """
        path = self._path(key)
        view = memoryview(data).cast("B")
        trial = self._connection.trial("put", key, size=len(view))

        def send(clients: Clients) -> None:
            if if_absent:
                obstore.put(_by_size(clients, view), path, view, mode="create")
            else:
                obstore.put(
                    _by_size(clients, view),
                    path,
                    view,
                    use_multipart=len(view) > PART_BYTES,
                    chunk_size=PART_BYTES,
                    max_concurrency=PARTS_AT_ONCE,
                )

        try:
            self._connection.run(trial, key, send)
        except AlreadyExistsError:
            if trial.retries == 0 or self.get(key) != view:
                raise

    def get(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        """See `Store.get`."""
        return b"".join(self.stream(key, start=start, length=length))

    def stream(self, key: str, *, start: int = 0, length: int | None = None) -> Iterator[bytes]:
        """See `Store.stream`."""
        path = self._path(key)
        trial = self._connection.trial("get", key)
        return Download(self._connection, path, trial).pieces(key, start, length)

    def list(self, prefix: str) -> Iterator[Entry]:
        """See `Store.list`."""
        folder = self._folder(prefix)
        found = self._connection.run(
            self._connection.trial("list", prefix),
            prefix,
            lambda clients: [
                Entry(meta["path"][len(self._prefix) :], meta["size"], meta["last_modified"].timestamp())
                for batch in obstore.list(clients.requests, prefix=folder)
                for meta in batch
            ],
        )
        yield from sorted(found)

    def list_folders(self, prefix: str) -> Sequence[str]:
        """See `Store.list_folders`."""
        folder = self._folder(prefix)
        found = self._connection.run(
            self._connection.trial("list", prefix),
            prefix,
            lambda clients: obstore.list_with_delimiter(clients.requests, prefix=folder)["common_prefixes"],
        )
        return sorted(name.rstrip("/").rpartition("/")[2] for name in found)

    def delete(self, key: str) -> None:
        """See `Store.delete`."""
        path = self._path(key)
        trial = self._connection.trial("delete", key)
        with suppress(NotFoundError):
            self._connection.run(
                trial, key, lambda clients: obstore.delete(clients.requests, path), reading=True
            )

    @contextmanager
    def open_writer(self, key: str) -> Iterator[ObjectWriter]:
        """See `Store.open_writer`: a multipart upload, invisible until it is complete."""
        path = self._path(key)
        clients = self._connection.clients()
        trial = self._connection.trial("put", key)
        succeeded = False
        try:
            with _told(trial):
                upload = obstore.open_writer(
                    clients.uploads, path, buffer_size=PART_BYTES, max_concurrency=PARTS_AT_ONCE
                )
            yield ObjectWriter(upload, trial)  # an error leaves the upload incomplete, hence invisible
            with _told(trial):
                upload.close()
            succeeded = True
        finally:
            if not succeeded:  # perhaps its keys were refused; the next operation reads them anew
                self._connection.drop(clients)
            self._connection.report(trial, key, succeeded=succeeded)

    def _path(self, key: str) -> str:
        return self._prefix + check_key(key)

    def _folder(self, prefix: str) -> str | None:
        return (self._prefix + check_prefix(prefix)).rstrip("/") or None


def _by_size(clients: Clients, view: memoryview) -> Any:
    return clients.requests if len(view) <= _SMALL_BYTES else clients.uploads


@contextmanager
def _told(trial: Trial) -> Iterator[None]:
    """Our error for a part of an upload that obstore gave up, without obstore's own text."""
    raised: StoreError | None = None
    with trial.waiting():
        try:
            yield
        except OBSTORE_ERRORS as error:
            raised = explain(read_fault(error), trial.where, reading=False, tried="")
    if raised is not None:
        raise raised from None
