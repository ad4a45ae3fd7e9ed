"""Shards of a folder on this machine: given as they lie, or named with what is wrong."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from torchrelay.core.errors import DataError
from torchrelay.data.cache.choose import open_bytes
from torchrelay.data.dataset import Dataset, open_dataset
from torchrelay.data.manifest import ShardEntry
from torchrelay.data.shard_bytes import LocalBytes
from torchrelay.store.open import open_store


@pytest.fixture
def dataset(build: Callable[..., Any], stories: list[str], tmp_path: Path) -> Dataset:
    store = open_store(str(tmp_path / "store"))
    build(stories, into=store)
    return open_dataset(store, "d")


@pytest.fixture
def shards(dataset: Dataset) -> tuple[ShardEntry, ...]:
    return dataset.manifest.splits["train"]


def path_of(dataset: Dataset, entry: ShardEntry) -> Path:
    path = dataset.store.local_path(f"{dataset.folder}/{entry.key}")
    assert path is not None
    return path


def test_shards_are_mapped_where_they_lie(dataset: Dataset, shards: tuple[ShardEntry, ...]) -> None:
    source = open_bytes(dataset)
    assert isinstance(source, LocalBytes)
    for entry in shards:
        content = path_of(dataset, entry).read_bytes()
        assert source.open(entry) == content
        assert source.tail(entry, 100) == content[100:]
        assert source.index(entry) is None
    with pytest.raises(TypeError):
        source.open(shards[0])[0] = 0


def test_a_view_outlives_its_file(dataset: Dataset, shards: tuple[ShardEntry, ...]) -> None:
    path = path_of(dataset, shards[0])
    content, view = path.read_bytes(), open_bytes(dataset).open(shards[0])
    path.unlink()
    assert view == content


def cut(path: Path, other: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def empty(path: Path, other: Path) -> None:
    path.write_bytes(b"")


def flip(path: Path, other: Path) -> None:
    content = bytearray(path.read_bytes())
    content[300] ^= 1
    path.write_bytes(content)


def swap(path: Path, other: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(other.read_bytes())
    other.write_bytes(content)


def double(path: Path, other: Path) -> None:
    path.write_bytes(other.read_bytes())


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (cut, "bytes, the shard"),
        (empty, "the file has 0 bytes"),
        (flip, "its xxh3_128 is"),
        (swap, "is damaged"),
        (double, "is damaged"),
        (lambda path, other: path.unlink(), "is missing"),
    ],
    ids=["cut off", "empty", "flipped", "swapped", "another's twice", "missing"],
)
def test_a_shard_that_is_not_the_one_of_the_manifest_is_named(
    dataset: Dataset, shards: tuple[ShardEntry, ...], damage: Callable[[Path, Path], None], said: str
) -> None:
    damage(path_of(dataset, shards[1]), path_of(dataset, shards[2]))
    with pytest.raises(DataError) as caught:
        open_bytes(dataset).open(shards[1])
    assert shards[1].key in caught.value.message
    assert said in caught.value.message
    assert "torchrelay data verify" in caught.value.hint
    assert "building the dataset again" in caught.value.hint
