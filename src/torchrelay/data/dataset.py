"""Find versions of datasets in a store. Reads refs and manifests, never a shard; starts fast."""

import json
from dataclasses import dataclass
from typing import Any, NamedTuple

from torchrelay.core.errors import DataError, NotFoundError
from torchrelay.core.plugins import nearest
from torchrelay.data.layout import (
    ROOT,
    Reference,
    dataset_folder,
    manifest_key,
    parse_reference,
    ref_key,
)
from torchrelay.data.manifest import Manifest
from torchrelay.data.manifest_json import parse_manifest
from torchrelay.store.base import Store
from torchrelay.store.open import open_store


class Ref(NamedTuple):
    """A numbered, create-only pointer to a version."""

    number: int
    version: str
    created: str
    """UTC, as `core.clock.iso_time` writes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """One version of a dataset, and the store that holds it."""

    manifest: Manifest
    store: Store

    @property
    def folder(self) -> str:
        """Key of the folder that shard keys are relative to."""
        return dataset_folder(self.manifest.name)

    def shard_place(self) -> tuple[Store, str]:
        """The store that holds the shards, and the folder in it that their keys are relative to."""
        if self.manifest.base is None:
            return self.store, self.folder
        return open_store(self.manifest.base), ""


def open_dataset(store: Store, reference: str) -> Dataset:
    """The version that `NAME`, `NAME@3` or `NAME@<version>` names; DataError when there is none."""
    wanted = parse_reference(reference)
    return Dataset(manifest=read_manifest(store, wanted.name, _find_version(store, wanted)), store=store)


def read_manifest(store: Store, name: str, version: str) -> Manifest:
    """The manifest of a version by its 64 digits; DataError when it is missing or damaged."""
    key = manifest_key(name, version)
    where = f"{store.url}/{key}"
    try:
        manifest = parse_manifest(store.get(key), where)
    except NotFoundError as error:
        raise DataError(f"{where} is missing") from error
    if (manifest.name, manifest.version) != (name, version):
        raise DataError(f"{where} is the manifest of {manifest.name} version {manifest.version}")
    return manifest


def list_datasets(store: Store) -> list[str]:
    """Names of all datasets that have a version, sorted. Walks every key under `datasets/`."""
    parts = (entry.key.split("/") for entry in store.list(ROOT))
    return sorted({part[1] for part in parts if len(part) == 4 and part[2] == "refs"})


def list_refs(store: Store, name: str) -> list[int]:
    """Numbers of the dataset's refs, ascending; empty when there is no such dataset."""
    names = [entry.key.rpartition("/")[2] for entry in store.list(f"{dataset_folder(name)}/refs")]
    return sorted(int(stem) for stem in (name.removesuffix(".json") for name in names) if stem.isdigit())


def read_ref(store: Store, name: str, number: int) -> Ref:
    """One ref; DataError when it is damaged, NotFoundError when it does not exist."""
    key = ref_key(name, number)
    try:
        tree: dict[str, Any] = json.loads(store.get(key))
        return Ref(number, str(tree["version"]), str(tree["created"]))
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{store.url}/{key} is damaged: {error}") from error


def _find_version(store: Store, wanted: Reference) -> str:
    numbers = list_refs(store, wanted.name)
    if not numbers:
        raise _missing(store, wanted.name)
    if wanted.pin is None:
        return read_ref(store, wanted.name, numbers[-1]).version
    if wanted.number in numbers:
        return read_ref(store, wanted.name, wanted.number).version
    if wanted.version is None:
        raise DataError(
            f"dataset {wanted.name!r} has no ref {wanted.pin}",
            hint=f"its refs are 1 to {numbers[-1]}; torchrelay data show {wanted.name} lists them",
        )
    return _match_version(store, wanted.name, wanted.version)


def _match_version(store: Store, name: str, start: str) -> str:
    keys = [entry.key for entry in store.list(f"{dataset_folder(name)}/versions")]
    versions = sorted({key.split("/")[3] for key in keys if key.endswith("/manifest.json")})
    matches = [version for version in versions if version.startswith(start)]
    if len(matches) == 1:
        return matches[0]
    shown = ", ".join(version[:12] for version in versions)
    if matches:
        raise DataError(f"{len(matches)} versions of {name!r} begin with {start}", hint=f"versions: {shown}")
    raise DataError(f"dataset {name!r} has no version that begins with {start}", hint=f"versions: {shown}")


def _missing(store: Store, name: str) -> DataError:
    names = list_datasets(store)
    close = nearest(name, names)
    found = f"datasets there: {', '.join(names)}" if names else "there is none there yet"
    return DataError(
        f"there is no dataset {name!r} in {store.url}{close}",
        hint=f"{found}; torchrelay data build NAME --text 'files/*.txt' makes one",
    )
