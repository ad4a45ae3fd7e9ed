"""`s3://` and `memory://` through obstore.

Never use one of these stores and fork afterwards: obstore's threads do not survive a fork and
the child would hang (measured, even with a store it opens itself). A guard turns that hang
into an error. Spawn processes instead.

Keys, endpoint and region come from the environment (`AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`,
`AWS_SESSION_TOKEN`, `AWS_ENDPOINT_URL`, `AWS_REGION`) or from the profile that `AWS_PROFILE` names
in `~/.aws/credentials`; a recipe never holds them.
"""

import configparser
import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import obstore
from obstore import exceptions
from obstore.store import MemoryStore, S3Store

from torchrelay.core.errors import AlreadyExistsError, NotFoundError, StoreError
from torchrelay.store.base import Buffer, Entry

REQUEST_TIMEOUT_S = 200
CONNECT_TIMEOUT_S = 10
_PART_BYTES = 16 * 2**20


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
        with self._errors(key):
            if if_absent:
                obstore.put(self._client, self._path(key), bytes(data), mode="create")
            else:
                obstore.put(self._client, self._path(key), bytes(data))

    def get(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        """See `Store.get`."""
        with self._errors(key):
            if start == 0 and length is None:
                return bytes(obstore.get(self._client, self._path(key)).bytes())
            if length is None:
                length = obstore.head(self._client, self._path(key))["size"] - start
            if length == 0:
                return b""
            return bytes(obstore.get_range(self._client, self._path(key), start=start, length=length))

    def list(self, prefix: str) -> Iterator[Entry]:
        """See `Store.list`."""
        with self._errors(prefix):
            folder = self._path(prefix).rstrip("/") or None
            entries = [
                Entry(meta["path"][len(self._prefix) :], meta["size"], meta["last_modified"].timestamp())
                for batch in obstore.list(self._client, prefix=folder)
                for meta in batch
            ]
        yield from sorted(entries)

    def delete(self, key: str) -> None:
        """See `Store.delete`."""
        try:
            with self._errors(key):
                obstore.delete(self._client, self._path(key))
        except NotFoundError:
            return

    @contextmanager
    def open_writer(self, key: str) -> Iterator[Any]:
        """See `Store.open_writer`: a multipart upload, invisible until it is complete."""
        with self._errors(key):
            writer = obstore.open_writer(self._client, self._path(key), buffer_size=_PART_BYTES)
            yield writer  # an error leaves the upload incomplete, hence invisible
            writer.close()

    def _path(self, key: str) -> str:
        if os.getpid() != self._pid:
            raise StoreError(
                f"{self._url} was opened before this process was forked and cannot be used in it",
                hint="start worker processes with spawn, not fork",
            )
        return self._prefix + key

    @contextmanager
    def _errors(self, key: str) -> Iterator[None]:
        where = f"{self._url}/{key}".rstrip("/")
        try:
            yield
        except (exceptions.NotFoundError, FileNotFoundError) as error:
            raise NotFoundError(f"{where} does not exist") from error
        except exceptions.AlreadyExistsError as error:
            raise AlreadyExistsError(f"{where} exists already") from error
        except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
            raise StoreError(
                f"{where}: access denied",
                hint="check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY or AWS_PROFILE, and the bucket's policy",
            ) from error
        except exceptions.BaseError as error:
            first_line = str(error).strip().splitlines()[0][:300]
            raise StoreError(
                f"{where}: {first_line}",
                hint="check that the bucket exists and AWS_ENDPOINT_URL and AWS_REGION are right",
            ) from error


def open_s3(url: str, bucket: str, prefix: str, *, retry_s: float) -> ObjectStore:
    """A bucket of an S3-compatible service; gives up on a request after `retry_s` seconds of retries."""
    if not bucket:
        raise StoreError(f"{url!r} names no bucket; write s3://bucket/prefix")
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    config: dict[str, Any] = {"region": os.environ.get("AWS_REGION", "us-east-1"), **_profile_keys()}
    if endpoint:
        config |= {"endpoint": endpoint, "virtual_hosted_style_request": False}
    client = S3Store(
        bucket,
        config=config,
        client_options={
            "timeout": timedelta(seconds=min(REQUEST_TIMEOUT_S, retry_s)),
            "connect_timeout": timedelta(seconds=min(CONNECT_TIMEOUT_S, retry_s)),
            "allow_http": bool(endpoint and endpoint.startswith("http://")),
        },
        retry_config={"max_retries": 10, "retry_timeout": timedelta(seconds=retry_s)},
    )
    return ObjectStore(url, client, prefix)


def open_memory(url: str, name: str, prefix: str) -> ObjectStore:
    """A store of this process alone; every open of the same name gives the same objects."""
    return ObjectStore(url, _memory(name), prefix)


@functools.cache
def _memory(name: str) -> MemoryStore:
    return MemoryStore()


def _profile_keys() -> dict[str, str]:
    profile = os.environ.get("AWS_PROFILE")
    if not profile or "AWS_ACCESS_KEY_ID" in os.environ:
        return {}
    path = Path(os.environ.get("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials")).expanduser()
    parser = configparser.ConfigParser()
    parser.read(path)
    if profile not in parser:
        raise StoreError(
            f"AWS_PROFILE={profile!r} is not in {path}",
            hint=f"profiles there: {', '.join(parser.sections()) or 'none'}",
        )
    names = {
        "aws_access_key_id": "access_key_id",
        "aws_secret_access_key": "secret_access_key",
        "aws_session_token": "session_token",
    }
    return {ours: parser[profile][theirs] for theirs, ours in names.items() if theirs in parser[profile]}
