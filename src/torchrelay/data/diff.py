"""What differs between two versions of a dataset: settings, shards, and documents by their ids."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchrelay.data.cache.choose import open_bytes
from torchrelay.data.dataset import Dataset
from torchrelay.data.formats.ids import read_ids
from torchrelay.data.manifest import SPLITS, TRAIN, Content, ShardEntry, content_tree

Ids = NDArray[np.uint64]


class Setting(NamedTuple):
    """Something besides the shards that differs."""

    name: str
    old: Any
    new: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitDifference:
    """What differs in one split."""

    split: str
    shared_shards: int
    added_shards: int
    removed_shards: int
    added_bytes: int
    """Bytes of the added shards: what the new version takes in the store beyond the old one."""
    old_samples: int
    new_samples: int
    added_samples: int | None
    """Samples by id that are only in the new version; None where a format has no ids."""
    removed_samples: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """What differs between two versions."""

    settings: tuple[Setting, ...]
    splits: tuple[SplitDifference, ...]
    leaked_samples: int | None
    """Samples that the old version kept out of training and the new one trains on; None where a format
    has no ids."""


def compare(old: Dataset, new: Dataset) -> Difference:
    """Compare two versions, of the same dataset or not. Reads manifests and the ends of shards."""
    contents = old.manifest.content, new.manifest.content
    old_ids = {split: collect_ids(old, split) for split in contents[0].splits}
    new_ids = {split: collect_ids(new, split) for split in contents[1].splits}
    names = [split for split in SPLITS if split in old_ids or split in new_ids]
    return Difference(
        settings=tuple(_compare_settings(*contents)),
        splits=tuple(
            _compare_split(split, contents, (old_ids.get(split, _NONE), new_ids.get(split, _NONE)))
            for split in names
        ),
        leaked_samples=_count_leaked(old_ids, new_ids.get(TRAIN, _NONE)),
    )


def collect_ids(dataset: Dataset, split: str) -> Ids | None:
    """Sorted distinct ids of a split's samples; None where the format has none. Reads ends of shards only."""
    source = open_bytes(dataset)
    found: list[Ids] = []
    for entry in dataset.manifest.splits[split]:
        ids = read_ids(source, entry, dataset.manifest.content)
        if ids is None:
            return None
        found.append(ids)
    return np.unique(np.concatenate([_NONE, *found]))


def _compare_settings(old: Content, new: Content) -> Iterator[Setting]:
    before, after = content_tree(old), content_tree(new)
    for name in before:
        if name != "splits" and before[name] != after[name]:
            yield Setting(name, before[name], after[name])


def _compare_split(
    split: str, contents: tuple[Content, Content], ids: tuple[Ids | None, Ids | None]
) -> SplitDifference:
    old, new = (_by_hash(content, split) for content in contents)
    added = new.keys() - old.keys()
    old_ids, new_ids = ids
    return SplitDifference(
        split=split,
        shared_shards=len(old.keys() & new.keys()),
        added_shards=len(added),
        removed_shards=len(old.keys() - new.keys()),
        added_bytes=sum(new[sha256].bytes for sha256 in added),
        old_samples=sum(entry.samples for entry in contents[0].splits.get(split, ())),
        new_samples=sum(entry.samples for entry in contents[1].splits.get(split, ())),
        added_samples=_count_missing(new_ids, old_ids),
        removed_samples=_count_missing(old_ids, new_ids),
    )


def _count_missing(ids: Ids | None, others: Ids | None) -> int | None:
    """How many of `ids` are not among `others`."""
    if ids is None or others is None:
        return None
    return len(np.setdiff1d(ids, others, assume_unique=True))


def _by_hash(content: Content, split: str) -> dict[str, ShardEntry]:
    return {entry.sha256: entry for entry in content.splits.get(split, ())}


def _count_leaked(old_ids: dict[str, Ids | None], trained: Ids | None) -> int | None:
    kept_out = [ids for split, ids in old_ids.items() if split != TRAIN]
    if trained is None or any(ids is None for ids in kept_out):
        return None
    return sum(len(np.intersect1d(ids, trained, assume_unique=True)) for ids in kept_out if ids is not None)


_NONE: Ids = np.empty(0, np.uint64)
