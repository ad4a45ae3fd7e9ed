"""`index.json`, by which MosaicML MDS and LitData name their shards."""

import json
import posixpath
from typing import Any, NamedTuple

from torchrelay.core.errors import DataError
from torchrelay.data.adopt.plan import Found
from torchrelay.store.base import Store

NAME = "index.json"


class IndexFile(NamedTuple):
    """One `index.json`."""

    where: str
    """Its URL."""
    folder: str
    """Key of the folder that names are relative to; empty where it is the base itself."""
    tree: dict[str, Any]

    def key(self, name: str) -> str:
        """Key of a file that it names; DataError when that lies elsewhere."""
        key = posixpath.normpath(posixpath.join(self.folder, name))
        if key.startswith(("/", "..")):
            raise DataError(f"{self.where} names {name!r}, which lies outside of its folder")
        return key


def read_index_file(store: Store, key: str) -> IndexFile:
    """The file at `key`; DataError when it is not a JSON object."""
    where = f"{store.url}/{key}"
    try:
        tree = json.loads(store.get(key))
    except ValueError as error:
        raise DataError(f"{where} is not valid JSON: {error}") from error
    if not isinstance(tree, dict):
        raise DataError(f"{where} is not a JSON object")
    return IndexFile(where, posixpath.dirname(key), tree)


def check_size(found: Found, index: IndexFile, key: str, wanted: int) -> None:
    """DataError when a shard that the index names is missing or of another size."""
    size = found.sizes.get(key)
    if size is None:
        raise DataError(f"{found.store.url}/{key} is missing; {index.where} names it")
    if size != wanted:
        raise DataError(f"{found.store.url}/{key} has {size:,} bytes, {index.where} says {wanted:,}")
