import gc
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import count
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from torchrelay.core.errors import DataError
from torchrelay.data.batch import MicroBatch
from torchrelay.data.dataset import open_dataset
from torchrelay.data.layout import tokenizer_key
from torchrelay.data.loader import SplitReader, open_split, read_ahead
from torchrelay.data.order.position import DataPosition, check_position
from torchrelay.recipe.data_schema import DataSection
from torchrelay.store.base import Store

Build = Callable[..., Any]


def section(**changes: Any) -> DataSection:
    return DataSection(**{"dataset": "d", "sequence_length": 16, "window_shards": 2, "lanes": 4, **changes})


def slots(start: int, stop: int) -> "np.ndarray[Any, np.dtype[np.int64]]":
    return np.arange(start, stop, dtype=np.int64)


@pytest.fixture
def reader(store: Store, build: Build, stories: list[str]) -> SplitReader:
    build(stories)
    return open_split(section(), store, "train", seed=1)


def test_a_batch_holds_tokens_and_the_tokens_after_them(reader: SplitReader) -> None:
    batch = reader.read(slots(0, 6))
    tokens, labels = batch.tensors["tokens"], batch.tensors["labels"]
    assert tokens.shape == labels.shape == (6, 16)
    assert tokens.dtype == labels.dtype == torch.int64
    assert torch.equal(tokens[:, 1:], labels[:, :-1])
    assert (batch.num_targets, batch.num_tokens) == (96, 96)
    assert len(set(batch.sample_ids.tolist())) == 6


def test_a_sample_id_is_the_same_sample_wherever_it_is_read(reader: SplitReader) -> None:
    seen: dict[int, list[int]] = {}
    for epoch in range(2):
        for start in range(epoch * reader.num_samples, (epoch + 1) * reader.num_samples - 5, 5):
            batch = reader.read(slots(start, start + 5))
            for sample, row in zip(batch.sample_ids.tolist(), batch.tensors["tokens"].tolist(), strict=True):
                assert seen.setdefault(sample, row) == row
    assert len(seen) == reader.num_samples


def test_a_batch_stays_as_it_was_when_the_next_is_read(reader: SplitReader) -> None:
    first = reader.read(slots(0, 4))
    copy = first.tensors["tokens"].clone()
    reader.read(slots(4, 8))
    first.tensors["labels"].zero_()
    assert torch.equal(reader.read(slots(0, 4)).tensors["tokens"], copy)


def test_facts_and_figures_are_those_of_the_split(store: Store, reader: SplitReader) -> None:
    manifest = open_dataset(store, "d").manifest
    totals = manifest.totals("train")
    assert (reader.facts.vocabulary, reader.facts.end_token) == (257, 256)
    assert (reader.facts.sequence_length, reader.facts.num_labels) == (16, None)
    assert reader.version == manifest.version
    assert (reader.tokens_per_sample, reader.targets_per_sample) == (16, 16)
    assert reader.bytes_per_token == totals.text_bytes / totals.tokens < 1
    assert reader.num_samples == sum((entry.tokens - 1) // 16 for entry in manifest.splits["train"])
    assert reader.files == {"torchrelay_tokenizer.json": store.get(tokenizer_key("d", manifest.version))}


def test_documents_promise_no_number_of_tokens(store: Store, build: Build, stories: list[str]) -> None:
    build(stories)
    reader = open_split(section(reading="documents", sequence_length=400), store, "train", seed=1)
    assert (reader.tokens_per_sample, reader.targets_per_sample) == (None, None)
    batch = reader.read(slots(0, 3))
    assert batch.num_targets == int((batch.tensors["labels"] != -100).sum())


def test_any_number_of_processes_reads_the_same_steps(store: Store, build: Build, stories: list[str]) -> None:
    """N1 steps on W1 processes and N2 on W2 read what one process reads; each process opens its own."""
    build(stories)

    def run(world: int, steps: range) -> list[list[int]]:
        ranks = [open_split(section(), store, "train", seed=3) for _ in range(world)]
        return [
            [
                sample
                for rank, part in zip(
                    ranks, np.array_split(slots(12 * step, 12 * step + 12), world), strict=True
                )
                for sample in rank.read(part).sample_ids.tolist()
            ]
            for step in steps
        ]

    whole = run(1, range(60))
    n = open_split(section(), store, "train", seed=3).num_samples
    assert n < 2 * n <= 60 * 12
    for before, after in ((1, 2), (2, 1), (3, 4), (4, 3), (2, 4)):
        assert run(before, range(17)) + run(after, range(17, 60)) == whole
    flat = [sample for step in whole for sample in step]
    assert sorted(flat[:n]) == sorted(flat[n : 2 * n]) == list(range(n))
    assert flat[:n] != flat[n : 2 * n]


def test_validation_is_read_in_stored_order_once(store: Store, build: Build, stories: list[str]) -> None:
    build(stories)
    reader = open_split(section(), store, "validation", seed=1)
    everything = reader.read(slots(0, reader.num_samples))
    assert everything.sample_ids.tolist() == list(range(reader.num_samples))
    assert not reader.is_endless
    with pytest.raises(
        DataError, match=f"slot {reader.num_samples} is beyond the {reader.num_samples} samples"
    ):
        reader.read(slots(0, reader.num_samples + 1))


def test_validation_documents_are_read_the_same_in_a_later_version(
    store: Store, build: Build, stories: list[str]
) -> None:
    def rows(reference: str) -> set[tuple[int, ...]]:
        documents = section(dataset=reference, reading="documents", sequence_length=500)
        reader = open_split(documents, store, "validation", seed=1)
        labels = reader.read(slots(0, reader.num_samples)).tensors["labels"]
        return {tuple(row[row != -100].tolist()) for row in labels}

    build(stories[:25])
    build(stories)
    assert rows("d@1") < rows("d@2")


def test_a_flipped_byte_is_found_when_its_shard_is_first_read(
    store: Store, build: Build, stories: list[str]
) -> None:
    manifest = build(stories).manifest
    entry = manifest.splits["train"][2]
    data = bytearray(store.get(f"datasets/d/{entry.key}"))
    data[100] ^= 4
    store.put(f"datasets/d/{entry.key}", data)
    reader = open_split(section(), store, "train", seed=1)
    with pytest.raises(DataError, match=f"shard {entry.key} of .*/datasets/d is damaged: its xxh3_128 is"):
        reader.read(slots(0, reader.num_samples))


def test_a_position_is_the_committed_slot_and_fits_only_the_same_data(
    store: Store, build: Build, stories: list[str]
) -> None:
    build(stories[:20])
    before = open_split(section(), store, "train", seed=1)
    saved = before.position(24)
    assert saved == DataPosition(dataset_version=before.version, seed=1, order_version=1, global_slot=24)
    check_position(saved, open_split(section(), store, "train", seed=1).position(0))
    build(stories)
    with pytest.raises(DataError, match="pin the version with NAME@|now data.dataset gives version"):
        check_position(saved, open_split(section(), store, "train", seed=1).position(0))
    check_position(
        saved, open_split(section(dataset=f"d@{before.version[:12]}"), store, "train", seed=1).position(0)
    )


def test_a_missing_dataset_or_split_is_named(store: Store) -> None:
    with pytest.raises(DataError, match="there is no dataset 'd'"):
        open_split(section(), store, "train", seed=1)
    with pytest.raises(DataError, match="there is no split 'other'"):
        open_split(section(), store, "other", seed=1)


def test_a_too_long_sequence_is_refused_at_open(store: Store, build: Build, stories: list[str]) -> None:
    build(stories)
    with pytest.raises(DataError, match="the train split of d .* has .* tokens"):
        open_split(section(sequence_length=10_000), store, "train", seed=1)


class Numbers:
    """Sample i is i."""

    version = "numbers"

    def __len__(self) -> int:
        return 30

    def read(self, index: int) -> dict[str, Any]:
        return {"x": np.array([index], np.float32)}


@pytest.fixture
def numbers(store: Store, monkeypatch: pytest.MonkeyPatch) -> SplitReader:
    module = ModuleType("numbers_data")
    module.open_data = lambda split: Numbers()
    monkeypatch.setitem(sys.modules, "numbers_data", module)
    return open_split(DataSection(source="numbers_data:open_data"), store, "train", seed=1)


def test_a_python_source_is_one_endless_shuffled_shard(numbers: SplitReader) -> None:
    batch = numbers.read(slots(0, 60))
    assert batch.tensors["x"].dtype == torch.float32
    assert batch.tensors["x"][:, 0].tolist() == batch.sample_ids.tolist()
    assert sorted(batch.sample_ids[:30].tolist()) == sorted(batch.sample_ids[30:].tolist()) == list(range(30))
    assert batch.sample_ids[:30].tolist() not in (list(range(30)), batch.sample_ids[30:].tolist())
    assert (batch.num_targets, batch.num_tokens) == (60, 60)
    assert (numbers.version, numbers.num_samples, numbers.bytes_per_token) == ("numbers", 30, None)
    assert (numbers.facts.vocabulary, numbers.targets_per_sample, numbers.files) == (None, 1, {})


def steps(start: int = 0) -> Iterator[Any]:
    return (slots(4 * step, 4 * step + 4) for step in count(start))


@pytest.mark.parametrize("depth", [1, 3, 10])
def test_reading_ahead_gives_the_same_batches(reader: SplitReader, depth: int) -> None:
    expected = [reader.read(slots(4 * step, 4 * step + 4)).sample_ids.tolist() for step in range(7)]
    ranges = [slots(4 * step, 4 * step + 4) for step in range(7)]
    assert [batch.sample_ids.tolist() for batch in read_ahead(reader, ranges, depth)] == expected


class Recording:
    """Stands for a SplitReader and remembers what it was asked for."""

    def __init__(self, reader: SplitReader, *, fail_at: int | None = None) -> None:
        self._reader = reader
        self._fail_at = fail_at
        self.asked: list[int] = []

    def read(self, slots: Any) -> MicroBatch:
        self.asked.append(int(slots[0]))
        if self._fail_at == len(self.asked):
            raise DataError("shard x is damaged")
        return self._reader.read(slots)


def test_at_most_depth_batches_are_read_ahead(reader: SplitReader) -> None:
    recording = Recording(reader)
    ahead = read_ahead(recording, steps(), 2)
    for consumed in range(1, 6):
        next(ahead)
        assert len(recording.asked) <= consumed + 2
    ahead.close()


def test_what_was_read_ahead_is_not_consumed(reader: SplitReader) -> None:
    """A run that stops goes on at the slot after its last committed step, however deep it read ahead."""
    ahead = read_ahead(reader, steps(), 8)
    consumed = [next(ahead).sample_ids.tolist() for _ in range(5)]
    ahead.close()
    position = reader.position(5 * 4)
    resumed = next(read_ahead(reader, steps(position.global_slot // 4), 8)).sample_ids.tolist()
    assert [*consumed, resumed] == [
        reader.read(slots(4 * step, 4 * step + 4)).sample_ids.tolist() for step in range(6)
    ]


def test_an_error_is_raised_where_its_batch_would_have_come(reader: SplitReader) -> None:
    ahead = read_ahead(Recording(reader, fail_at=3), steps(), 5)
    next(ahead)
    next(ahead)
    with pytest.raises(DataError, match="shard x is damaged"):
        next(ahead)
    assert _threads() == []


def test_closing_ends_the_thread(reader: SplitReader) -> None:
    ahead = read_ahead(reader, steps(), 3)
    next(ahead)
    assert _threads() != []
    ahead.close()
    assert _threads() == []
    forgotten = read_ahead(reader, steps(), 3)
    next(forgotten)
    del forgotten
    gc.collect()
    assert _threads() == []


def _threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("read-ahead")]


def test_everything_but_loader_and_batch_comes_without_torch() -> None:
    code = (
        "import sys\n"
        "from torchrelay.data import build, dataset, publish, reading, source, verify, position\n"
        "import torchrelay.cli.data\n"
        "assert 'torch' not in sys.modules, 'torch'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_looking_for_datasets_needs_neither_numpy_nor_torch() -> None:
    code = (
        "import sys\n"
        "import torchrelay.cli.data, torchrelay.data.dataset\n"
        "assert 'numpy' not in sys.modules and 'pydantic' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
