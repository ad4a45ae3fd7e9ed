"""The end of a build: the manifest, the list of what was left out, and tidying up after killed processes."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
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
    """The manifest; its parent is the newest version in the store that is another one."""
    record = BuildRecord(
        arguments=arguments,
        code=__version__,
        created=created,
        skipped=skipped,
    )
    manifest = make_manifest(name, content, record)
    return replace(manifest, build=replace(record, parent=_newest_other(store, manifest)))


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


def list_shards(store: Store, name: str) -> dict[str, int]:
    """Bytes of every shard of the dataset that is in the store, by its key in the manifest."""
    folder = dataset_folder(name)
    return {entry.key.removeprefix(f"{folder}/"): entry.size for entry in store.list(f"{folder}/shards")}


def count_lost(shards: Mapping[str, int], splits: Mapping[str, Sequence[ShardEntry]]) -> int:
    """How many shards are not among `list_shards`, or are of another size there."""
    keys = {entry.key: entry.bytes for entries in splits.values() for entry in entries}
    return sum(shards.get(key) != size for key, size in keys.items())


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


def _newest_other(store: Store, manifest: Manifest) -> str | None:
    for number in reversed(list_refs(store, manifest.name)):
        with suppress(DataError):  # a damaged ref is no reason not to build
            version = read_ref(store, manifest.name, number).version
            if version != manifest.version:
                return version
    return None
