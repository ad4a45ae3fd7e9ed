from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchrelay.core.errors import DataError
from torchrelay.data.batch import IGNORE_LABEL
from torchrelay.data.build.division import divide
from torchrelay.data.dataset import Dataset, open_dataset
from torchrelay.data.formats.tok import ShardSet
from torchrelay.data.manifest import TRAIN
from torchrelay.data.order.order import Located
from torchrelay.data.reading import (
    IGNORED,
    Reading,
    check_split,
    count_samples,
    count_windows,
    make_order,
    open_reading,
)
from torchrelay.recipe.data_schema import DataSection
from torchrelay.store.base import Store

Build = Callable[..., Any]


def section(**changes: Any) -> DataSection:
    return DataSection(**{"dataset": "d", "sequence_length": 16, **changes})


def open_train(store: Store, section: DataSection) -> tuple[Reading, ShardSet, Dataset]:
    dataset = open_dataset(store, "d")
    shards = ShardSet(store, dataset.folder, dataset.manifest.splits["train"], dataset.manifest.token_dtype)
    return open_reading(section, dataset.manifest, shards), shards, dataset


def located(*places: tuple[int, int]) -> Located:
    shards, indexes = (np.array(column, np.int64) for column in zip(*places, strict=True))
    return Located(np.zeros_like(shards), shards, indexes)


def test_the_label_that_is_not_predicted_is_the_one_of_batches() -> None:
    assert IGNORED == IGNORE_LABEL


@given(tokens=st.integers(0, 10_000), length=st.integers(1, 500))
def test_windows_are_counted_as_they_fit(tokens: int, length: int) -> None:
    starts = range(0, max(0, tokens - length), length)
    assert count_windows(tokens, length) == len([s for s in starts if s + length + 1 <= tokens])


@pytest.mark.parametrize("shard_bytes", [1024, 2**20])
def test_packed_samples_are_consecutive_windows_and_labels_come_one_later(
    store: Store, build: Build, stories: list[str], shard_bytes: int
) -> None:
    build(stories, shard_bytes=shard_bytes)
    reading, shards, dataset = open_train(store, section())
    counts = count_samples(section(), dataset.manifest.splits["train"])
    assert (len(shards) == 1) == (shard_bytes > 1024)
    places = [(shard, index) for shard, count in enumerate(counts) for index in range(count)]
    rows = reading.read(located(*places))
    for number, (shard, index) in enumerate(places):
        tokens = shards.shard(shard).tokens.astype(np.int64)
        assert rows.arrays["tokens"][number].tolist() == tokens[index * 16 : index * 16 + 16].tolist()
        assert rows.arrays["labels"][number].tolist() == tokens[index * 16 + 1 : index * 16 + 17].tolist()
    assert rows.num_targets == rows.num_tokens == 16 * len(places)
    assert all(array.dtype == np.int64 for array in rows.arrays.values())


def test_documents_are_padded_to_the_longest_and_every_token_after_the_first_is_predicted(
    store: Store, build: Build, stories: list[str]
) -> None:
    build(stories)
    reading, shards, dataset = open_train(store, section(reading="documents", sequence_length=1000))
    longest = dataset.manifest.totals("train").longest_document
    rows = reading.read(located((1, 1), (0, 0)))
    tokens, labels = rows.arrays["tokens"], rows.arrays["labels"]
    assert tokens.shape == labels.shape == (2, longest - 1)
    predicted = 0
    for number, (shard, index) in enumerate([(1, 1), (0, 0)]):
        ends = [0, *shards.shard(shard).ends.tolist()]
        document = shards.shard(shard).tokens[ends[index] : ends[index + 1]].tolist()
        n = len(document) - 1
        assert tokens[number, :n].tolist() == document[:-1]
        assert labels[number, :n].tolist() == document[1:]
        assert (labels[number, n:] == IGNORE_LABEL).all() and (tokens[number, n:] == 0).all()
        assert labels[number, n - 1] == 256
        predicted += n
    assert rows.num_targets == rows.num_tokens == predicted


def train_lengths(texts: list[str]) -> list[int]:
    """Bytes of the texts that are in the train split."""
    return [
        len(text) for text in texts if divide(memoryview(text.encode()), "document", 0.3)[0].split == TRAIN
    ]


def test_documents_that_are_too_long_are_refused_with_their_number_and_the_longest(
    store: Store, build: Build
) -> None:
    texts = [f"{n:03d}" + "x" * (n * 7 % 200) for n in range(60)]
    build(texts)
    lengths = train_lengths(texts)
    with pytest.raises(DataError) as caught:
        open_train(store, section(reading="documents", sequence_length=100))
    longer = sum(length > 100 for length in lengths)
    assert caught.value.message == (
        f"documents longer than data.sequence_length 100: {longer}; the longest has {max(lengths)} tokens"
    )
    assert f"data.sequence_length: {max(lengths)}" in caught.value.hint
    open_train(store, section(reading="documents", sequence_length=max(lengths)))


def test_counting_reads_footers_only_of_shards_with_a_long_document(
    store: Store, build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [f"{n:03d}" + "x" * (n * 4) for n in range(60)]
    build(texts)
    longest = max(train_lengths(texts))
    asked: list[int] = []
    footer = ShardSet.footer

    def recording(self: ShardSet, number: int) -> Any:
        asked.append(number)
        return footer(self, number)

    monkeypatch.setattr(ShardSet, "footer", recording)
    monkeypatch.setattr(ShardSet, "shard", lambda *_: pytest.fail("read tokens"))
    _, shards, _ = open_train(store, section(reading="documents", sequence_length=longest))
    assert asked == [] and len(shards) > 5
    with pytest.raises(DataError, match=f"documents longer than data.sequence_length {longest - 1}: 1;"):
        open_train(store, section(reading="documents", sequence_length=longest - 1))
    assert len(asked) == 1


def test_truncation_keeps_the_start(store: Store, build: Build, stories: list[str]) -> None:
    build(stories)
    long = section(reading="documents", sequence_length=8, long_documents="truncate")
    reading, shards, _ = open_train(store, long)
    rows = reading.read(located((0, 0)))
    assert rows.arrays["tokens"][0].tolist() == shards.shard(0).tokens[:8].tolist()
    assert rows.arrays["labels"][0].tolist() == shards.shard(0).tokens[1:9].tolist()
    assert rows.num_targets == 8


def test_a_document_larger_than_a_shard_cannot_be_one_sample(store: Store, build: Build) -> None:
    build(["x" * 5000], split="tail")
    manifest = open_dataset(store, "d").manifest
    with pytest.raises(DataError, match="has a document that is larger than a shard"):
        check_split(section(reading="documents", long_documents="truncate"), manifest, "train")
    check_split(section(), manifest, "train")


def test_a_sequence_longer_than_any_shard_is_refused_with_the_figures(
    store: Store, build: Build, stories: list[str]
) -> None:
    build(stories)
    manifest = open_dataset(store, "d").manifest
    tokens = manifest.totals("train").tokens
    most = max(entry.tokens for entry in manifest.splits["train"])
    with pytest.raises(DataError) as caught:
        check_split(section(sequence_length=600), manifest, "train")
    assert f"has {tokens:,} tokens, {most:,} in its largest shard" in caught.value.message
    assert "data.sequence_length 600 needs 601" in caught.value.message
    assert f"at most {most - 1}" in caught.value.hint
    check_split(section(sequence_length=most - 1), manifest, "train")


def test_validation_is_in_stored_order_whatever_the_recipe_says(
    store: Store, build: Build, stories: list[str]
) -> None:
    build(stories)
    manifest = open_dataset(store, "d").manifest
    order = make_order(section(shuffle=True), manifest, "validation", 1)
    assert order.samples(np.arange(order.num_samples)).sample_ids.tolist() == list(range(order.num_samples))
    with pytest.raises(DataError, match="there is no split 'test'"):
        make_order(section(), manifest, "test", 1)


@pytest.fixture
def labelled(store: Store, tmp_path: Path) -> Store:
    """40 documents "a…" and "b…", class by letter, lengths 1 to 40."""
    from torchrelay.data.build.dataset_build import BuildRequest, build_dataset
    from torchrelay.data.build.input import JsonLines

    lines = [f'{{"t": "{"ab"[n % 2] * (n + 1)}", "l": "{"AB"[n % 2]}"}}\n' for n in range(40)]
    (tmp_path / "a.jsonl").write_text("".join(lines))
    source = JsonLines(patterns=[str(tmp_path / "a.jsonl")], field="t", label_field="l")
    request = BuildRequest(documents=source, shard_bytes=1024, validation=0.2)
    build_dataset(store, "d", request, progress=lambda *_: None)
    return store


@pytest.mark.parametrize("length", [100, 41, 40])
def test_labelled_documents_have_a_mask_and_a_class(labelled: Store, length: int) -> None:
    reading, shards, dataset = open_train(labelled, section(reading="documents", sequence_length=length))
    counts = count_samples(section(reading="documents"), dataset.manifest.splits["train"])
    places = [(shard, index) for shard, count in enumerate(counts) for index in range(count)]
    rows = reading.read(located(*places))
    tokens, mask, labels = (rows.arrays[name] for name in ("tokens", "attention_mask", "labels"))
    longest = dataset.manifest.totals("train").longest_document
    assert tokens.shape == mask.shape == (len(places), min(length, longest))
    for number in range(len(places)):
        row = tokens[number][mask[number] == 1]
        text = row[row != 256]
        assert set(text.tolist()) == {ord("ab"[labels[number]])}
        assert (row[-1] == 256) or len(row) == length  # only the end mark is left out where it does not fit
        assert (tokens[number][mask[number] == 0] == 0).all()
    assert rows.num_targets == len(places)
    assert rows.num_tokens == int(mask.sum())


def test_labelled_documents_can_be_read_as_packed_text(labelled: Store) -> None:
    reading, _, _ = open_train(labelled, section(sequence_length=5))
    assert set(reading.read(located((0, 0))).arrays) == {"tokens", "labels"}
