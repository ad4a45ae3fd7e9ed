from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.data.token_shards import write_tokens
from torchrelay.data.dataset import Dataset, open_dataset
from torchrelay.data.layout import tokenizer_key
from torchrelay.data.verify import Finding, verify_dataset
from torchrelay.store.base import Store

Build = Callable[..., Any]


def problems(dataset: Dataset) -> list[Finding]:
    return verify_dataset(dataset, progress=lambda *_: None)


@pytest.fixture
def dataset(store: Store, build: Build, stories: list[str]) -> Dataset:
    build(stories)
    return open_dataset(store, "d")


def test_a_sound_version_has_no_findings_and_all_of_it_is_read(dataset: Dataset) -> None:
    seen: list[tuple[int, int]] = []
    assert verify_dataset(dataset, progress=lambda done, total: seen.append((done, total))) == []
    size = sum(entry.bytes for entries in dataset.manifest.splits.values() for entry in entries)
    assert seen[-1] == (size, size)
    assert len(seen) == sum(len(entries) for entries in dataset.manifest.splits.values())


def test_every_damaged_shard_is_named_once_with_what_it_should_be(dataset: Dataset) -> None:
    flipped, short = dataset.manifest.splits["train"][1:3]
    missing = dataset.manifest.splits["validation"][0]
    data = bytearray(dataset.store.get(f"datasets/d/{flipped.key}"))
    data[7] ^= 64
    dataset.store.put(f"datasets/d/{flipped.key}", data)
    dataset.store.put(f"datasets/d/{short.key}", bytes(short.bytes - 1))
    dataset.store.delete(f"datasets/d/{missing.key}")
    found = problems(dataset)
    assert [(finding.split, finding.key) for finding in found] == [
        ("train", flipped.key),
        ("train", short.key),
        ("validation", missing.key),
    ]
    assert found[0].problem.startswith("sha256 is ") and flipped.sha256 in found[0].problem
    assert found[1].problem == f"has {short.bytes - 1:,} bytes, the manifest says {short.bytes:,}"
    assert found[2].problem == "is missing"


def test_a_wrong_checksum_of_right_bytes_is_named(dataset: Dataset) -> None:
    entries = dataset.manifest.splits["train"]
    wrong = replace(entries[0], xxh3_128="0" * 32)
    (finding,) = problems(with_content(dataset, splits={"train": (wrong, *entries[1:])}))
    assert finding.problem == f"xxh3_128 is {entries[0].xxh3_128}, the manifest says {'0' * 32}"


def test_building_again_heals(dataset: Dataset, build: Build, stories: list[str]) -> None:
    entry = dataset.manifest.splits["train"][0]
    dataset.store.put(f"datasets/d/{entry.key}", bytes(entry.bytes))
    dataset.store.put(tokenizer_key("d", dataset.manifest.version), b"{}")
    assert len(problems(dataset)) == 2
    assert not build(stories).is_new
    assert problems(dataset) == []


def test_a_damaged_tokenizer_is_named(dataset: Dataset) -> None:
    version = dataset.manifest.version
    dataset.store.put(tokenizer_key("d", version), b"{}")
    (finding,) = problems(dataset)
    assert (finding.split, finding.key) == ("", f"versions/{version}/tokenizer.json")
    assert "its sha256 is" in finding.problem


def crooked(dataset: Dataset, *, labelled: bool = False, **changes: Any) -> Dataset:
    """The dataset with a single shard, sound by its hashes, of tokens that do not fit the manifest."""
    entries = write_tokens(
        dataset.store,
        [changes.pop("tokens", [1, 2, 3])],
        folder=dataset.folder,
        end_token=changes.pop("end_token", 256),
        labels=[changes.pop("label", 0)] if labelled else None,
    )
    return with_content(dataset, splits={"train": entries}, **changes)


def with_content(dataset: Dataset, **changes: Any) -> Dataset:
    content = replace(dataset.manifest.content, **changes)
    return replace(dataset, manifest=replace(dataset.manifest, content=content))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"tokens": [1, 300]}, "holds token 300, the vocabulary has 257"),
        ({"end_token": 255}, "a document does not end with the end mark"),
        ({"labelled": True, "label": 0}, "has labels where the manifest has none, or the other way round"),
        ({"label_names": ("a",)}, "has labels where the manifest has none, or the other way round"),
        (
            {"labelled": True, "label": 2, "label_names": ("a", "b")},
            "holds label 2, there are 2 classes",
        ),
        (
            {"labelled": True, "label": -1, "label_names": ("a", "b")},
            "holds label -1, there are 2 classes",
        ),
    ],
)
def test_content_that_does_not_fit_is_named(dataset: Dataset, changes: dict[str, Any], problem: str) -> None:
    found = problems(crooked(dataset, **changes))
    assert [finding.problem for finding in found] == [problem]


def test_a_shard_that_is_not_what_its_entry_says_is_named(dataset: Dataset) -> None:
    made = crooked(dataset)
    (entry,) = made.manifest.splits["train"]
    (finding,) = problems(with_content(made, splits={"train": (replace(entry, samples=9),)}))
    assert "its trailer tells" in finding.problem


def test_a_sample_in_two_splits_is_named(dataset: Dataset) -> None:
    splits = dict(dataset.manifest.splits)
    twice = splits["validation"][0]
    splits["train"] = (*splits["train"], twice)
    (finding,) = problems(with_content(dataset, splits=splits))
    assert finding.split == "validation"
    assert finding.problem.startswith(f"{twice.samples:,} samples are in train too, id ")
