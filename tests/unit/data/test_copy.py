from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from torchrelay.core.errors import DataError
from torchrelay.data.copy import copy_dataset
from torchrelay.data.dataset import Dataset, list_refs, open_dataset
from torchrelay.data.manifest import ShardEntry, make_manifest
from torchrelay.data.verify import verify_dataset
from torchrelay.store.base import Store
from torchrelay.store.files import FileStore

Build = Callable[..., Any]


def nothing(done: int, total: int) -> None:
    pass


@pytest.fixture
def source(store: Store, build: Build, stories: list[str]) -> Dataset:
    build(stories)
    return open_dataset(store, "d")


@pytest.fixture
def target(tmp_path: Path) -> Store:
    return FileStore(tmp_path / "target")


def size_of(dataset: Dataset) -> int:
    return sum(entry.bytes for entries in dataset.manifest.splits.values() for entry in entries)


def test_the_copy_has_the_same_version_and_is_sound(source: Dataset, target: Store) -> None:
    seen: list[tuple[int, int]] = []
    copied = copy_dataset(source, target, "e", progress=lambda done, total: seen.append((done, total)))
    assert copied == ((1, True), size_of(source), 0)
    assert seen[-1] == (size_of(source), size_of(source))
    made = open_dataset(target, "e")
    assert made.manifest.version == source.manifest.version
    assert verify_dataset(made, progress=nothing) == []


def test_what_is_there_is_not_copied_again(source: Dataset, target: Store, build: Build) -> None:
    copy_dataset(source, target, "d", progress=nothing)
    first = source.manifest.splits["train"][0]
    target.delete(f"datasets/d/{first.key}")
    again = copy_dataset(source, target, "d", progress=nothing)
    assert again == ((1, False), first.bytes, size_of(source) - first.bytes)


def test_a_damaged_shard_stops_the_copy_before_anything_is_visible(source: Dataset, target: Store) -> None:
    entry = source.manifest.splits["train"][1]
    data = bytearray(source.store.get(f"datasets/d/{entry.key}"))
    data[3] ^= 1
    source.store.put(f"datasets/d/{entry.key}", data)
    with pytest.raises(DataError, match=f"shard {entry.key} of .* is damaged: its sha256 is"):
        copy_dataset(source, target, "d", progress=nothing)
    assert list_refs(target, "d") == []
    assert all(found.key != f"datasets/d/{entry.key}" for found in target.list(""))


def test_a_missing_shard_is_named(source: Dataset, target: Store) -> None:
    entry = source.manifest.splits["validation"][0]
    source.store.delete(f"datasets/d/{entry.key}")
    with pytest.raises(DataError, match=f"shard {entry.key} of .* is missing"):
        copy_dataset(source, target, "d", progress=nothing)


def test_adopted_spans_are_copied_object_by_object(source: Dataset, target: Store) -> None:
    """Two spans of one object with a gap between them arrive as one object with the same bytes."""
    import hashlib

    import xxhash

    body = bytes(range(200))
    source.store.put("far/data.bin", body)
    spans = [(10, 50), (80, 200)]
    entries = tuple(
        ShardEntry(
            key="data.bin",
            start=start,
            bytes=stop - start,
            samples=1,
            sha256=hashlib.sha256(body[start:stop]).hexdigest(),
            xxh3_128=xxhash.xxh3_128_hexdigest(body[start:stop]),
        )
        for start, stop in spans
    )
    tokenizer = replace(source.manifest.tokenizer, kind="unknown", sha256="")
    content = replace(
        source.manifest.content, splits={"train": entries}, format="megatron", tokenizer=tokenizer
    )
    manifest = make_manifest("a", content, source.manifest.build, base=f"{source.store.url}/far")
    copied = copy_dataset(Dataset(manifest=manifest, store=source.store), target, "a", progress=nothing)
    assert copied.copied_bytes == 160
    assert target.get("datasets/a/files/data.bin") == body
    made = open_dataset(target, "a").manifest
    assert (made.version, made.base) == (manifest.version, f"{target.url}/datasets/a/files")
