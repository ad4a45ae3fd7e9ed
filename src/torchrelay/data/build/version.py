"""The end of a build: the manifest, the list of what was left out, and tidying up after killed processes."""

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from torchrelay import __version__
from torchrelay.core.errors import DataError
from torchrelay.data.build.journal import Progress, read_units
from torchrelay.data.dataset import list_refs, read_ref
from torchrelay.data.layout import dataset_folder, manifest_key, ref_key, tokenizer_key
from torchrelay.data.manifest import SPLITS, BuildRecord, Content, Manifest, ShardEntry, make_manifest
from torchrelay.store.base import TEMPORARY_MARK, Store

_SHOWN = 20


def describe_version(
    store: Store, name: str, content: Content, arguments: Mapping[str, Any], *, skipped: int, created: str
) -> Manifest:
    """The manifest; its parent is the newest version before, unless that is the same."""
    record = BuildRecord(
        arguments=arguments,
        code=__version__,
        created=created,
        parent=_newest(store, name),
        skipped=skipped,
    )
    return make_manifest(name, content, record)


def take_splits(progress: Progress) -> dict[str, tuple[ShardEntry, ...]]:
    """The shards of every split that has any, in the order of SPLITS."""
    return {split: tuple(progress.entries[split]) for split in SPLITS if split in progress.entries}


def list_skipped(work: Path) -> tuple[tuple[str, ...], Path]:
    """The first bad inputs that were left out, and the file beside the work folder that names all."""
    path = work.with_name(f"{work.name}.skipped.jsonl")
    first: list[str] = []
    with path.open("w") as file:
        for report in read_units(work):
            first += report.problems[: _SHOWN - len(first)]
            file.writelines(json.dumps({"problem": problem}) + "\n" for problem in report.problems)
    return tuple(first), path


def has_all(store: Store, name: str, progress: Progress) -> bool:
    """Whether every shard that the journal tells of is still in the store."""
    folder = dataset_folder(name)
    sizes = {entry.key: entry.size for entry in store.list(f"{folder}/shards")}
    entries = (entry for entries in progress.entries.values() for entry in entries)
    return all(sizes.get(f"{folder}/{entry.key}") == entry.bytes for entry in entries)


def sweep_store(store: Store, manifest: Manifest, ref: int, before_s: float) -> None:
    """Remove incomplete files that killed processes of this build left in a store on this machine.

    Only beside what belongs to the version, and only what nobody wrote to since `before_s`.
    """
    shards = [f"{dataset_folder(manifest.name)}/{e.key}" for s in manifest.splits.values() for e in s]
    name, version = manifest.name, manifest.version
    for key in [*shards, manifest_key(name, version), tokenizer_key(name, version), ref_key(name, ref)]:
        path = store.local_path(key)
        if path is None:
            return
        for left in path.parent.glob(f"{path.name[:50]}{TEMPORARY_MARK}*"):
            _remove_older(left, before_s)


def _remove_older(path: Path, before_s: float) -> None:
    with suppress(FileNotFoundError):
        if path.stat().st_mtime < before_s:
            path.unlink()


def _newest(store: Store, name: str) -> str | None:
    numbers = list_refs(store, name)
    with suppress(DataError):  # a damaged ref is no reason not to build
        return read_ref(store, name, numbers[-1]).version if numbers else None
    return None
