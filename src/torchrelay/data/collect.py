"""Find and delete what no version of a dataset needs any more (`torchrelay data gc`)."""

from collections.abc import Callable, Collection
from dataclasses import dataclass

from torchrelay.data.dataset import list_refs, list_tags, list_versions, read_manifest, read_ref
from torchrelay.data.layout import check_name, dataset_folder, ref_key
from torchrelay.store.base import Entry, Store

Progress = Callable[[int, int], None]
"""Called with objects deleted and objects in all."""

GRACE_S = 24 * 3600.0
"""Younger files may belong to a build that has not made its version visible yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waste:
    """What would be deleted, in the order in which it is: what points before what is pointed to."""

    refs: tuple[int, ...]
    versions: tuple[str, ...]
    files: tuple[str, ...]
    """Keys of manifests, tokenizers, shards and indexes."""
    bytes: int
    young: int
    """Files that nothing needs but that are younger than the grace."""


def find_waste(
    store: Store,
    name: str,
    *,
    keep_last: int | None,
    protected: Collection[str],
    now_s: float,
    grace_s: float = GRACE_S,
) -> Waste:
    """What goes when only the newest `keep_last` ≥ 1 refs stay (None: all), every tag and `protected`.

    `protected` are versions that runs were trained on. DataError when a manifest that stays is
    damaged: then nothing can be told to be waste.
    """
    numbers = list_refs(store, check_name(name))
    kept = numbers if keep_last is None else numbers[-keep_last:]
    versions = {read_ref(store, name, number).version for number in kept}
    versions |= set(list_tags(store, name).values()) | set(protected)
    present = list_versions(store, name)
    needed = _needed_keys(store, name, [version for version in present if version in versions])
    folder = dataset_folder(name)
    waste = [
        entry
        for part in ("versions", "shards", "indexes", "files")
        for entry in store.list(f"{folder}/{part}")
        if entry.key.removeprefix(f"{folder}/") not in needed
    ]
    gone = tuple(version for version in present if version not in versions)
    old = [entry for entry in waste if _is_old(entry, gone, now_s - grace_s)]
    return Waste(
        refs=tuple(
            number for number in numbers if number not in kept and _points_to(store, name, number, gone)
        ),
        versions=gone,
        files=tuple(entry.key for entry in old),
        bytes=sum(entry.size for entry in old),
        young=len(waste) - len(old),
    )


def delete_waste(store: Store, name: str, waste: Waste, *, progress: Progress) -> None:
    """Refs first, then manifests, then shards, so that what stays visible is always complete."""
    keys = [*(ref_key(name, number) for number in waste.refs), *waste.files]
    for done, key in enumerate(keys, start=1):
        store.delete(key)
        progress(done, len(keys))


def _needed_keys(store: Store, name: str, versions: list[str]) -> set[str]:
    """Keys, relative to the dataset's folder, of everything the versions consist of."""
    needed: set[str] = set()
    for version in versions:
        manifest = read_manifest(store, name, version)
        needed |= {f"versions/{version}/manifest.json", f"versions/{version}/tokenizer.json"}
        prefix = "" if manifest.base is None else "files/"
        for entries in manifest.splits.values():
            needed |= {prefix + entry.key for entry in entries}
            needed |= {entry.index for entry in entries if entry.index is not None}
    return needed


def _is_old(entry: Entry, gone: tuple[str, ...], limit_s: float) -> bool:
    """Parts of a version that goes are never too young; a stray file may belong to a build under way."""
    return entry.modified_s < limit_s or any(f"/versions/{version}/" in entry.key for version in gone)


def _points_to(store: Store, name: str, number: int, gone: tuple[str, ...]) -> bool:
    return read_ref(store, name, number).version in gone
