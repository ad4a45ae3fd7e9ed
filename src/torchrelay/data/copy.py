"""Copy a version to another store: every shard checked on the way, visible only when all are there."""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import groupby
from typing import NamedTuple

from torchrelay.core.errors import NotFoundError
from torchrelay.data.dataset import Dataset
from torchrelay.data.layout import check_name, dataset_folder, tokenizer_key
from torchrelay.data.manifest import Manifest, ShardEntry
from torchrelay.data.publish import Published, publish
from torchrelay.data.shard_bytes import damaged, join_key, missing
from torchrelay.store.base import Buffer, Store, Writer

Progress = Callable[[int, int], None]
"""Called with bytes done and bytes in all."""


class Copied(NamedTuple):
    """What was done."""

    published: Published
    copied_bytes: int
    present_bytes: int
    """Of shards that were there already."""


def copy_dataset(source: Dataset, target: Store, name: str, *, progress: Progress) -> Copied:
    """Copy the version into `target` as dataset `name` and point a ref to it.

    The copy has the same version. A shard that is there with the right size is not copied again;
    adopted data is copied too, under `files/` of the dataset's folder. DataError names a shard that
    is damaged or missing; nothing becomes visible then.
    """
    manifest = _place_in(source.manifest, target, check_name(name))
    total = sum(entry.bytes for entry in _all_entries(manifest))
    copied = present = 0
    for entries in _by_object(manifest):
        size = sum(entry.bytes for entry in entries)
        key = join_key(_data_folder(manifest), entries[0].key)
        if _has(target, key, max(entry.start + entry.bytes for entry in entries)):
            present += size
        else:
            _copy_object(source, entries, target, key)
            copied += size
        progress(copied + present, total)
    _copy_indexes(source, target, name)
    return Copied(publish(target, manifest, _read_tokenizer(source)), copied, present)


def _place_in(manifest: Manifest, target: Store, name: str) -> Manifest:
    base = None if manifest.base is None else f"{target.url}/{dataset_folder(name)}/files"
    return replace(manifest, name=name, base=base)


def _data_folder(manifest: Manifest) -> str:
    folder = dataset_folder(manifest.name)
    return folder if manifest.base is None else f"{folder}/files"


def _all_entries(manifest: Manifest) -> list[ShardEntry]:
    return [entry for entries in manifest.splits.values() for entry in entries]


def _by_object(manifest: Manifest) -> Iterator[list[ShardEntry]]:
    """The spans of every object in the order of their bytes, each span once."""
    entries = sorted({(entry.key, entry.start): entry for entry in _all_entries(manifest)}.items())
    for _, group in groupby(entries, key=lambda item: item[0][0]):
        yield [entry for _, entry in group]


def _has(store: Store, key: str, size: int) -> bool:
    return any(found.key == key and found.size == size for found in store.list(key.rpartition("/")[0]))


def _copy_object(source: Dataset, entries: list[ShardEntry], target: Store, key: str) -> None:
    """Byte for byte, the gaps between spans too; a span whose hash is wrong leaves no object."""
    store, folder = source.shard_place()
    origin, place = join_key(folder, entries[0].key), join_key(store.url, folder)
    done = 0
    with target.open_writer(key) as writer:
        for entry in entries:
            gap = store.stream(origin, start=done, length=entry.start - done)
            span = store.stream(origin, start=entry.start, length=entry.bytes)
            try:
                _copy_span(gap, span, writer, _Check(entry, place, adopted=not folder))
            except NotFoundError as error:
                raise missing(place, entry, adopted=not folder) from error
            done = entry.start + entry.bytes


class _Check(NamedTuple):
    """What a span must hash to, and where it lies."""

    entry: ShardEntry
    place: str
    adopted: bool


def _copy_span(gap: Iterable[Buffer], span: Iterable[Buffer], writer: Writer, check: _Check) -> None:
    digest = hashlib.sha256()
    for piece in gap:
        writer.write(piece)
    for piece in span:
        digest.update(piece)
        writer.write(piece)
    got, told = digest.hexdigest(), check.entry.sha256
    if got != told:
        why = f"its sha256 is {got}, the manifest says {told}"
        raise damaged(check.place, check.entry, why, adopted=check.adopted)


def _copy_indexes(source: Dataset, target: Store, name: str) -> None:
    for key in {entry.index for entry in _all_entries(source.manifest) if entry.index is not None}:
        target.put(join_key(dataset_folder(name), key), source.store.get(join_key(source.folder, key)))


def _read_tokenizer(source: Dataset) -> bytes | None:
    record = source.manifest.content.tokenizer
    if record is None or not record.sha256:
        return None
    return source.store.get(tokenizer_key(source.manifest.name, source.manifest.version))
