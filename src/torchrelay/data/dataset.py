"""Find versions of datasets in a store. Reads refs and manifests, never a shard; starts fast."""

import json
from collections.abc import Sequence
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
    tag_key,
)
from torchrelay.data.manifest import Manifest
from torchrelay.data.manifest_json import parse_manifest
from torchrelay.store.base import Store
from torchrelay.store.open import open_store

_MOST_NAMES = 8
"""Names that a hint lists."""


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
    """The version that `NAME`, `NAME@3`, `NAME@TAG` or `NAME@<version>` names; DataError if there is none."""
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
    """Names of all datasets that have a version, sorted."""
    return [name for name in store.list_folders(ROOT) if list_refs(store, name)]


def list_refs(store: Store, name: str) -> list[int]:
    """Numbers of the dataset's refs, ascending; empty when there is no such dataset."""
    names = [entry.key.rpartition("/")[2] for entry in store.list(f"{dataset_folder(name)}/refs")]
    return sorted(int(stem) for stem in (name.removesuffix(".json") for name in names) if stem.isdigit())


def read_ref(store: Store, name: str, number: int) -> Ref:
    """One ref; DataError when it is damaged, NotFoundError when it does not exist."""
    tree = _read_pointer(store, ref_key(name, number))
    return Ref(number, tree["version"], tree["created"])


def _read_pointer(store: Store, key: str) -> dict[str, str]:
    try:
        tree: dict[str, Any] = json.loads(store.get(key))
        return {name: str(tree[name]) for name in ("version", "created")}
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{store.url}/{key} is damaged: {error}") from error


def check_has_split(manifest: Manifest, split: str) -> None:
    """DataError that lists the splits of the version when this is none of them."""
    if split not in manifest.splits:
        raise DataError(
            f"{manifest.name} version {manifest.short_version} has no split {split!r}",
            hint=f"its splits: {', '.join(manifest.splits)}",
        )


def newest_version(store: Store, name: str) -> str | None:
    """The version that the dataset's newest ref points to; None when there is no such dataset."""
    numbers = list_refs(store, name)
    return read_ref(store, name, numbers[-1]).version if numbers else None


def list_tags(store: Store, name: str) -> dict[str, str]:
    """Versions by tag, sorted by tag."""
    keys = [entry.key for entry in store.list(f"{dataset_folder(name)}/tags")]
    tags = [key.rpartition("/")[2].removesuffix(".json") for key in keys]
    return {tag: read_tag(store, name, tag) for tag in tags}


def list_versions(store: Store, name: str) -> list[str]:
    """Every version that has a manifest, sorted; also those that no ref points to any more."""
    keys = [entry.key for entry in store.list(f"{dataset_folder(name)}/versions")]
    return sorted({key.split("/")[3] for key in keys if key.endswith("/manifest.json")})


def read_tag(store: Store, name: str, tag: str) -> str:
    """The version that a tag names; DataError when it is damaged, NotFoundError when there is none."""
    return _read_pointer(store, tag_key(name, tag))["version"]


def _find_version(store: Store, wanted: Reference) -> str:
    numbers = list_refs(store, wanted.name)
    if not numbers:
        raise _missing(store, wanted.name)
    if wanted.pin is None:
        return read_ref(store, wanted.name, numbers[-1]).version
    if wanted.number in numbers:
        return read_ref(store, wanted.name, wanted.number).version
    if wanted.tag is not None:
        return _match_tag(store, wanted.name, wanted.tag)
    if wanted.version is None:
        raise DataError(
            f"dataset {wanted.name!r} has no ref {wanted.pin}",
            hint=f"its refs are {numbers[0]} to {numbers[-1]}; torchrelay data show {wanted.name} lists them",
        )
    return _match_version(store, wanted.name, wanted.version)


def _match_tag(store: Store, name: str, tag: str) -> str:
    try:
        return read_tag(store, name, tag)
    except NotFoundError as error:
        tags = list_tags(store, name)
        raise DataError(
            f"dataset {name!r} has no tag {tag!r}{nearest(tag, list(tags))}",
            hint=f"tags: {_some(list(tags)) or 'none yet'}; torchrelay data tag {name}@REF {tag} makes it",
        ) from error


def _match_version(store: Store, name: str, start: str) -> str:
    versions = list_versions(store, name)
    matches = [version for version in versions if version.startswith(start)]
    if len(matches) == 1:
        return matches[0]
    shown = _some([version[:12] for version in versions])
    if matches:
        raise DataError(f"{len(matches)} versions of {name!r} begin with {start}", hint=f"versions: {shown}")
    raise DataError(f"dataset {name!r} has no version that begins with {start}", hint=f"versions: {shown}")


def _missing(store: Store, name: str) -> DataError:
    names = list_datasets(store)
    close = nearest(name, names)
    found = f"datasets there: {_some(names)}" if names else "there is none there yet"
    return DataError(
        f"there is no dataset {name!r} in {store.url}{close}",
        hint=f"{found}; torchrelay data build NAME --text 'files/*.txt' makes one",
    )


def _some(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    rest = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" … and {rest:,} more" if rest > 0 else "")
