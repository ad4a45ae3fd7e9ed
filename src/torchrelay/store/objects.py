"""`s3://` and `memory://` through obstore.

Never use one of these stores and fork afterwards: obstore's threads do not survive a fork and
the child would hang (measured, even with a store it opens itself). A guard turns that hang
into an error. Spawn processes instead.

Keys, endpoint and region come from the environment or a profile (`torchrelay.store.credentials`);
a recipe never holds them.
"""

import functools
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import obstore
from obstore import exceptions
from obstore.store import MemoryStore, S3Store

from torchrelay.core.errors import AlreadyExistsError, NotFoundError, StoreError
from torchrelay.store.base import Buffer, Entry, check_key, check_prefix
from torchrelay.store.credentials import read_credentials

REQUEST_TIMEOUT_S = 200
CONNECT_TIMEOUT_S = 10
_PART_BYTES = 16 * 2**20
_NO_BUCKET = "NoSuchBucket"
_CHECK_KEYS = "check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY or AWS_PROFILE, and the bucket's policy"
_CHECK_PLACE = "check that the bucket exists and AWS_ENDPOINT_URL and AWS_REGION are right"
_DENIED = ("AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "403 Forbidden")
"""What a service says in listings and deletions, where obstore has no error of its own for it."""

_UNREACHABLE = ("error sending request", "error trying to connect", "dns error", "timed out")


class ObjectWriter:
    """Appends to a multipart upload; `ObjectStore.open_writer` completes it when all went well."""

    def __init__(self, upload: Any, store: "ObjectStore", key: str) -> None:
        self._upload = upload
        self._store = store
        self._key = key

    def write(self, data: Buffer) -> None:
        """Append all of `data`."""
        with self._store.errors(self._key):
            self._upload.write(data)


class ObjectStore:
    """Objects under `prefix` of a bucket, or of memory."""

    def __init__(self, url: str, client: Any, prefix: str) -> None:
        self._url = url
        self._client = client
        self._prefix = f"{prefix}/" if prefix else ""
        self._pid = os.getpid()

    @property
    def url(self) -> str:
        """`scheme://bucket/prefix`."""
        return self._url

    def local_path(self, key: str) -> Path | None:
        """Objects of this store are not files of this machine."""
        return None

    def put(self, key: str, data: Buffer, *, if_absent: bool = False) -> None:
        """See `Store.put`."""
        path = self._path(key)
        with self.errors(key):
            if if_absent:
                obstore.put(self._client, path, bytes(data), mode="create")
            else:
                obstore.put(self._client, path, bytes(data))

    def get(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        """See `Store.get`."""
        path = self._path(key)
        with self.errors(key, reading=True):
            if start == 0 and length is None:
                return bytes(obstore.get(self._client, path).bytes())
            if length is None:
                length = obstore.head(self._client, path)["size"] - start
            if length <= 0:
                return b""
            return self._range(path, start, length)

    def list(self, prefix: str) -> Iterator[Entry]:
        """See `Store.list`."""
        prefix = check_prefix(prefix)
        folder = self._path(prefix) if prefix else self._prefix
        with self.errors(prefix):
            entries = [
                Entry(meta["path"][len(self._prefix) :], meta["size"], meta["last_modified"].timestamp())
                for batch in obstore.list(self._client, prefix=folder.rstrip("/") or None)
                for meta in batch
            ]
        yield from sorted(entries)

    def delete(self, key: str) -> None:
        """See `Store.delete`."""
        try:
            with self.errors(key, reading=True):
                obstore.delete(self._client, self._path(key))
        except NotFoundError:
            return

    @contextmanager
    def open_writer(self, key: str) -> Iterator[ObjectWriter]:
        """See `Store.open_writer`: a multipart upload, invisible until it is complete."""
        path = self._path(key)
        with self.errors(key):
            upload = obstore.open_writer(self._client, path, buffer_size=_PART_BYTES)
        yield ObjectWriter(upload, self, key)  # an error leaves the upload incomplete, hence invisible
        with self.errors(key):
            upload.close()

    def _range(self, path: str, start: int, length: int) -> bytes:
        try:
            return bytes(obstore.get_range(self._client, path, start=start, length=length))
        except exceptions.GenericError:
            if start >= obstore.head(self._client, path)["size"]:
                return b""
            raise

    def _path(self, key: str) -> str:
        if os.getpid() != self._pid:
            raise _forked(self._url)
        return self._prefix + check_key(key)

    @contextmanager
    def errors(self, key: str, *, reading: bool = False) -> Iterator[None]:
        """Turn obstore's errors into ours; only when `reading` can a missing thing be the object."""
        try:
            yield
        except (exceptions.BaseError, OSError) as error:
            raise _explain(error, f"{self._url}/{key}".rstrip("/"), reading=reading) from error


def _explain(error: Exception, where: str, *, reading: bool) -> StoreError:
    text = str(error)
    if isinstance(error, exceptions.AlreadyExistsError):
        return AlreadyExistsError(f"{where} exists already")
    absent = isinstance(error, exceptions.NotFoundError | FileNotFoundError)
    if absent and reading and _NO_BUCKET not in text:
        return NotFoundError(f"{where} does not exist")
    if absent or _NO_BUCKET in text:
        return StoreError(f"{where}: the bucket does not exist", hint=_CHECK_PLACE)
    denied = isinstance(error, exceptions.PermissionDeniedError | exceptions.UnauthenticatedError)
    if denied or any(word in text for word in _DENIED):
        return StoreError(f"{where}: access denied", hint=_CHECK_KEYS)
    unreachable = "cannot be reached: " if any(word in text for word in _UNREACHABLE) else ""
    return StoreError(f"{where}: {unreachable}{text.strip().splitlines()[0][:300]}", hint=_CHECK_PLACE)


def open_s3(
    url: str,
    bucket: str,
    prefix: str,
    *,
    retry_s: float,
    variables: Mapping[str, str] = os.environ,
) -> ObjectStore:
    """A bucket of an S3-compatible service; gives up on a request after `retry_s` seconds of retries."""
    if not bucket:
        raise StoreError(f"{url!r} names no bucket", hint="write s3://bucket/prefix")
    _refuse_after_fork(url)
    found = read_credentials(variables)
    config: dict[str, Any] = {"region": found.region or "us-east-1", **found.keys}
    if found.endpoint:
        config |= {"endpoint": found.endpoint, "virtual_hosted_style_request": False}
    client = S3Store(
        bucket,
        config=config,
        client_options={
            "timeout": timedelta(seconds=min(REQUEST_TIMEOUT_S, retry_s)),
            "connect_timeout": timedelta(seconds=min(CONNECT_TIMEOUT_S, retry_s)),
            "allow_http": bool(found.endpoint and found.endpoint.startswith("http://")),
        },
        retry_config={"max_retries": 10, "retry_timeout": timedelta(seconds=retry_s)},
    )
    return ObjectStore(url, client, prefix)


def open_memory(url: str, name: str, prefix: str) -> ObjectStore:
    """A store of this process alone; every open of the same name gives the same objects."""
    _refuse_after_fork(url)
    return ObjectStore(url, _memory(name), prefix)


@functools.cache
def _memory(name: str) -> MemoryStore:
    return MemoryStore()


@functools.cache
def _first_pid() -> int:
    """The process that opened an object store first; a forked child inherits the answer."""
    return os.getpid()


def _refuse_after_fork(url: str) -> None:
    if _first_pid() != os.getpid():
        raise _forked(url)


def _forked(url: str) -> StoreError:
    return StoreError(
        f"{url}: an object store was opened before this process was forked, so it cannot use one",
        hint="start worker processes with spawn, not fork",
    )
