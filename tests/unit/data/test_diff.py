from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from torchrelay.data.dataset import Dataset, open_dataset
from torchrelay.data.diff import collect_ids, compare
from torchrelay.store.base import Store

Build = Callable[..., Any]


def test_a_version_does_not_differ_from_itself(store: Store, build: Build, stories: list[str]) -> None:
    build(stories)
    dataset = open_dataset(store, "d")
    found = compare(dataset, dataset)
    assert found.settings == () and found.leaked_samples == 0
    for split in found.splits:
        assert (split.added_shards, split.removed_shards, split.added_samples, split.removed_samples) == (
            0,
            0,
            0,
            0,
        )
        assert split.shared_shards == len(dataset.manifest.splits[split.split])


def test_added_documents_are_counted_and_old_shards_shared(
    store: Store, build: Build, stories: list[str]
) -> None:
    build(stories[:30])
    build(stories)
    old, new = open_dataset(store, "d@1"), open_dataset(store, "d@2")
    found = {split.split: split for split in compare(old, new).splits}
    assert found["train"].shared_shards > 0
    assert sum(split.added_samples or 0 for split in found.values()) == 10
    assert sum(split.removed_samples or 0 for split in found.values()) == 0
    added = set(new.manifest.splits["train"]) - set(old.manifest.splits["train"])
    assert found["train"].added_bytes == sum(entry.bytes for entry in added)
    assert compare(old, new).leaked_samples == 0


def test_documents_that_move_from_validation_to_train_are_told(
    store: Store, build: Build, stories: list[str]
) -> None:
    build(stories, validation=0.5)
    build(stories, validation=0.2)
    old, new = open_dataset(store, "d@1"), open_dataset(store, "d@2")
    was, now = collect_ids(old, "validation"), collect_ids(new, "train")
    assert was is not None and now is not None
    leaked = len(np.intersect1d(was, now))
    assert leaked > 0
    assert compare(old, new).leaked_samples == leaked
    assert compare(new, old).leaked_samples == 0


def test_settings_that_differ_are_named(store: Store, build: Build, stories: list[str]) -> None:
    build(stories)
    build(stories, tokenizer="chars")
    names = {s.name for s in compare(open_dataset(store, "d@1"), open_dataset(store, "d@2")).settings}
    assert names == {"tokenizer"}


def test_what_has_no_ids_is_not_counted(store: Store, build: Build, stories: list[str]) -> None:
    build(stories)
    dataset = open_dataset(store, "d")
    content = replace(dataset.manifest.content, format="megatron")
    foreign = Dataset(manifest=replace(dataset.manifest, content=content), store=store)
    found = compare(dataset, foreign)
    assert found.leaked_samples is None
    assert {split.added_samples for split in found.splits} == {None}
