"""Make a version visible: tokenizer, manifest, then a ref. Its shards are in the store already.

Readers only follow refs, so they see a complete version or none.
"""

import json
from typing import NamedTuple

from torchrelay.core.errors import AlreadyExistsError, DataError, NotFoundError
from torchrelay.data.dataset import list_refs, read_manifest, read_ref
from torchrelay.data.layout import manifest_key, ref_key, tokenizer_key
from torchrelay.data.manifest import Manifest
from torchrelay.data.manifest_json import write_manifest
from torchrelay.store.base import Store


class Published(NamedTuple):
    """Where a version can be found."""

    number: int
    """The ref that points to it."""
    is_new: bool
    """False when the newest ref pointed to this version before."""


def publish(store: Store, manifest: Manifest, tokenizer_file: bytes | None) -> Published:
    """Write what belongs to the version and point a new ref to it, unless the newest one does already.

    `tokenizer_file` is None where the data has no tokenizer. Several publishers at once get refs of
    their own, in the order in which they come.
    """
    if tokenizer_file is not None:
        store.put(tokenizer_key(manifest.name, manifest.version), tokenizer_file)
    if not _has_manifest(store, manifest):
        store.put(manifest_key(manifest.name, manifest.version), write_manifest(manifest))
    content = json.dumps({"version": manifest.version, "created": manifest.build.created}).encode() + b"\n"
    while True:
        newest = max(list_refs(store, manifest.name), default=0)
        if newest and read_ref(store, manifest.name, newest).version == manifest.version:
            return Published(newest, is_new=False)
        try:
            store.put(ref_key(manifest.name, newest + 1), content, if_absent=True)
            return Published(newest + 1, is_new=True)
        except AlreadyExistsError:
            continue  # somebody published in between; look again


def _has_manifest(store: Store, manifest: Manifest) -> bool:
    """Whether a sound manifest of this version is there; a damaged one is to be written anew."""
    try:
        read_manifest(store, manifest.name, manifest.version)
    except (DataError, NotFoundError):
        return False
    return True
