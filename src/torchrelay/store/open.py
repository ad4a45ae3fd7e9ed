"""Open a store by its URL, and check early that it can be written."""

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from torchrelay.core.errors import StoreError
from torchrelay.core.place import DEFAULT_STORE as DEFAULT_STORE
from torchrelay.core.plugins import nearest
from torchrelay.store.base import Store, check_prefix
from torchrelay.store.files import FileStore
from torchrelay.store.services import open_azure, open_gcs, open_memory, open_s3
from torchrelay.store.trial import Observer

PATIENCE_S = 180.0
"""How long one operation on a remote store may wait in vain, all its tries together."""
QUICK_S = 10.0
"""The same where a person waits for an answer: what cannot be reached is told soon."""

_SERVICES = {"s3": open_s3, "gs": open_gcs, "az": open_azure}


def open_store(url: str, *, retry_s: float = PATIENCE_S, observer: Observer | None = None) -> Store:
    """The store at a URL, or at a plain path.

    URLs are `file:///abs/path`, `file://./relative`, `s3://bucket/prefix`, `gs://bucket/prefix`,
    `az://container/prefix` and `memory://name`. Reaches for nothing yet: what is wrong with a service
    or its keys is told at the first use. `observer` is told of every operation on a service, for
    example to count retries.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        return FileStore(Path(os.path.abspath(os.path.expanduser(url))))
    first, _, prefix = rest.partition("/")
    if scheme == "file":
        return FileStore(Path(os.path.abspath(rest)))
    prefix = check_prefix(prefix.strip("/"))
    url = f"{scheme}://{rest.rstrip('/')}"
    if scheme == "memory":
        return open_memory(url, first, prefix)
    if scheme in _SERVICES:
        return _SERVICES[scheme](url, first, prefix, retry_s=retry_s, observer=observer)
    raise StoreError(
        f"{url!r}: there is no store for {scheme}://{nearest(scheme, ['file', 'memory', *_SERVICES])}",
        hint="use file://, s3://, gs://, az:// or memory://",
    )


def check_writable(url: str, prefix: str) -> None:
    """Raise StoreError now, rather than at the first save, when `url` cannot be written under `prefix`.

    Leaves nothing behind, not even a folder that was not there.
    """
    store = open_store(url, retry_s=QUICK_S)
    key = f"{prefix}/.probe-{uuid.uuid4().hex}"
    try:
        with leaving_no_folder(store):
            store.put(key, b"probe", if_absent=True)
            store.delete(key)
    except OSError as error:
        raise StoreError(
            f"cannot write to {store.url}/{prefix}: {error.strerror}",
            hint="free some space, or choose another place with run.store or --store",
        ) from error


@contextmanager
def leaving_no_folder(store: Store) -> Iterator[None]:
    """Remove the folders of a local store that were made inside, where they are empty."""
    root = store.local_path("x")
    made = [] if root is None else [folder for folder in root.parents if not folder.exists()]
    try:
        yield
    finally:
        for folder in made:
            with suppress(OSError):  # somebody else uses it already
                folder.rmdir()
