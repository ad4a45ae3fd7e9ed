"""Open a store by its URL, and check early that it can be written."""

import os
import uuid
from contextlib import suppress
from pathlib import Path

from torchrelay.core.errors import StoreError
from torchrelay.core.place import DEFAULT_STORE as DEFAULT_STORE
from torchrelay.core.plugins import nearest
from torchrelay.store.base import Store, check_prefix
from torchrelay.store.files import FileStore
from torchrelay.store.objects import open_memory, open_s3

PATIENCE_S = 180.0
"""How long one request to a remote store is retried."""
QUICK_S = 10.0
"""The same where a person waits for an answer: what cannot be reached is told soon."""

_SCHEMES = ["file", "memory", "s3"]


def open_store(url: str, *, retry_s: float = PATIENCE_S) -> Store:
    """The store at `file:///abs/path`, `file://./relative`, a plain path, `s3://bucket/prefix`, `memory://name`."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return FileStore(Path(os.path.abspath(os.path.expanduser(url))))
    first, _, prefix = rest.partition("/")
    if scheme == "file":
        return FileStore(Path(os.path.abspath(rest)))
    prefix = check_prefix(prefix.strip("/"))
    if scheme == "memory":
        return open_memory(url.rstrip("/"), first, prefix)
    if scheme == "s3":
        return open_s3(url.rstrip("/"), first, prefix, retry_s=retry_s)
    raise StoreError(
        f"{url!r}: there is no store for {scheme}://{nearest(scheme, _SCHEMES)}",
        hint="use file://, s3:// or memory://",
    )


def check_writable(url: str, prefix: str) -> None:
    """Raise StoreError now, rather than at the first save, when `url` cannot be written under `prefix`.

    Leaves nothing behind, not even a folder that was not there.
    """
    store = open_store(url, retry_s=QUICK_S)
    key = f"{prefix}/.probe-{uuid.uuid4().hex}"
    root = store.local_path("x")
    made = [] if root is None else [folder for folder in root.parents if not folder.exists()]
    try:
        store.put(key, b"probe", if_absent=True)
        store.delete(key)
        for folder in made:
            with suppress(OSError):  # somebody else uses it already
                folder.rmdir()
    except OSError as error:
        raise StoreError(
            f"cannot write to {store.url}/{prefix}: {error.strerror}",
            hint="free some space, or choose another place with run.store or --store",
        ) from error
