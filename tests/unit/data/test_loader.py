import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from torchrelay.core.errors import DataError
from torchrelay.data.build.dataset_build import BuildRequest, build_dataset
from torchrelay.data.build.input import JsonLines
from torchrelay.data.dataset import open_dataset
from torchrelay.data.layout import tokenizer_key
from torchrelay.data.loader import SplitReader, open_reader, open_split, open_validation
from torchrelay.data.reader_spec import parse_spec, write_spec
from torchrelay.recipe.data_schema import DataSection
from torchrelay.store.base import Store

Build = Callable[..., Any]


def section(**changes: Any) -> DataSection:
    return DataSection(**{"dataset": "d", "sequence_length": 16, "window_shards": 2, "lanes": 4, **changes})


def slots(start: int, stop: int) -> "np.ndarray[Any, np.dtype[np.int64]]":
    return np.arange(start, stop, dtype=np.int64)


def ids(reader: SplitReader, start: int, stop: int) -> list[int]:
    found: list[int] = reader.locate(slots(start, stop)).located.sample_ids.tolist()
    return found


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
    assert reader.plan.version == manifest.version
    assert (reader.tokens_per_sample, reader.targets_per_sample) == (16, 16)
    assert reader.bytes_per_token == totals.text_bytes / totals.tokens < 1
    assert reader.num_samples == sum((entry.tokens - 1) // 16 for entry in manifest.splits["train"])
    assert reader.files == {"torchrelay_tokenizer.json": store.get(tokenizer_key("d", manifest.version))}


def test_classes_of_documents_have_names_and_their_loss_is_not_of_bytes(store: Store, tmp_path: Path) -> None:
    lines = [json.dumps({"text": f"story {n} " * 9, "kind": ["sad", "glad"][n % 2]}) for n in range(30)]
    (tmp_path / "stories.jsonl").write_text("\n".join(lines))
    documents = JsonLines(patterns=[str(tmp_path / "*.jsonl")], field="text", label_field="kind")
    request = BuildRequest(documents=documents, validation=0.3, work=tmp_path / "work")
    build_dataset(store, "d", request, clock=lambda: 0.0, progress=lambda *_: None)
    classes = open_split(section(reading="documents", sequence_length=100), store, "train", seed=1)
    assert (classes.facts.num_labels, classes.facts.label_names) == (2, ("glad", "sad"))
    assert classes.bytes_per_token is None
    packed = open_split(section(reading="packed"), store, "train", seed=1)
    assert packed.bytes_per_token is not None
    assert packed.facts.has_labels and packed.facts.num_labels is None


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
    with pytest.raises(DataError, match=f"shard {entry.key} of .*/datasets/d is damaged: .*its sha256 is"):
        reader.read(slots(0, reader.num_samples))


def test_a_position_is_the_committed_slot_and_fits_only_the_same_data(
    store: Store, build: Build, stories: list[str]
) -> None:
    build(stories[:20])
    before = open_split(section(), store, "train", seed=1, global_batch=12)
    saved = before.position(2)
    assert (saved.global_slot, saved.dataset_version, saved.seed) == (24, before.plan.version, 1)
    build(stories)
    pinned = f"d@{before.plan.version[:12]}"
    again = open_split(section(dataset=pinned), store, "train", seed=1, global_batch=8)
    again.go_on(saved, step=2)
    assert ids(again, 16, 40) == ids(before, 24, 48)
    newest = open_split(section(), store, "train", seed=1, global_batch=12)
    with pytest.raises(DataError, match=f"has read version .* now d is version {newest.plan.version[:12]}"):
        newest.go_on(saved, step=2)


def test_a_run_may_migrate_to_a_new_version_which_it_reads_from_its_start(
    store: Store, build: Build, stories: list[str]
) -> None:
    build(stories[:20])
    old = open_split(section(), store, "train", seed=1, global_batch=12)
    build(stories)
    wanted = section(migrate_from=old.plan.version[:8])
    new = open_split(wanted, store, "train", seed=1, global_batch=12)
    fresh = open_split(section(), store, "train", seed=1)
    new.go_on(old.position(2), step=2)
    batch, expected = new.read(slots(24, 36)), fresh.read(slots(0, 12))
    assert torch.equal(batch.tensors["tokens"], expected.tensors["tokens"])
    assert (batch.sample_ids - old.num_samples).tolist() == expected.sample_ids.tolist()
    assert [segment.start for segment in new.position(3).segments] == [0, 24]


def test_slots_that_are_left_out_are_passed_over(reader: SplitReader, store: Store) -> None:
    skipping = open_split(section(skip=("3..5", "7..8")), store, "train", seed=1)
    whole = ids(reader, 0, 12)
    assert ids(skipping, 0, 9) == [*whole[:3], *whole[5:7], *whole[8:12]]


def test_an_epoch_that_ends_with_a_step_is_filled_up_with_rows_that_do_not_count(
    store: Store, build: Build, stories: list[str]
) -> None:
    build(stories)
    stopping = open_split(section(epoch_end="stop"), store, "train", seed=1, global_batch=1000)
    n = stopping.num_samples
    assert n < 1000
    last = stopping.read(slots(n - 4, n + 2))
    assert last.tensors["tokens"].shape == (6, 16)
    assert (last.num_targets, last.num_tokens, len(last.sample_ids)) == (64, 64, 4)
    assert bool((last.tensors["labels"][4:] == -100).all())
    assert (stopping.targets_per_sample, stopping.is_uniform) == (None, False)
    course = stopping.itinerary.course
    assert (course.samples_in(1), course.samples_in(2)) == (n, n)
    assert (stopping.position(1).global_slot, stopping.position(2).global_slot) == (n, 2 * n)


def test_another_process_reads_the_same_even_when_there_is_a_newer_version(
    tmp_path: Path, build: Build, stories: list[str]
) -> None:
    from torchrelay.store.open import open_store

    store = open_store(str(tmp_path / "store"))
    build(stories[:20], into=store)
    ours = open_split(section(), store, "train", seed=5, global_batch=10)
    ours.go_on(replace(ours.position(3), global_slot=31), step=3)
    build(stories, into=store)
    assert ours.spec is not None
    theirs = open_reader(parse_spec(write_spec(ours.spec)))
    assert theirs.plan.version == ours.plan.version
    assert ids(theirs, 30, 60) == ids(ours, 30, 60)
    assert ids(theirs, 30, 31) == ids(open_split(section(dataset="d@1"), store, "train", seed=5), 31, 32)


@pytest.fixture
def mixture(build: Build, stories: list[str]) -> DataSection:
    build(stories, name="a")
    build([story.upper() for story in stories[:30]], name="b")
    parts = ({"dataset": "a", "weight": 3.0}, {"dataset": "b@1", "weight": 1.0})
    return DataSection.model_validate(
        {"mixture": parts, "sequence_length": 16, "window_shards": 2, "lanes": 4}
    )


def test_a_mixture_reads_each_part_as_it_is_read_alone(store: Store, mixture: DataSection) -> None:
    mixed = open_split(mixture, store, "train", seed=1)
    alone = [open_split(section(dataset=name), store, "train", seed=1) for name in ("a", "b")]
    base = alone[0].num_samples
    batch = mixed.read(slots(0, 400))
    rows = batch.tensors["tokens"]
    from_b = batch.sample_ids >= base
    assert abs(int(from_b.sum()) - 100) < 40
    for number, chosen in enumerate((~from_b, from_b)):
        expected = alone[number].read(slots(0, int(chosen.sum())))
        assert torch.equal(rows[torch.from_numpy(chosen)], expected.tensors["tokens"])
        assert (batch.sample_ids[chosen] - base * number).tolist() == expected.sample_ids.tolist()
    assert mixed.num_samples == base + alone[1].num_samples
    assert list(mixed.files) == ["torchrelay_tokenizer.json"]
    assert mixed.facts == alone[0].facts
    assert len(mixed.plan.version) == 64


def test_validation_of_a_mixture_is_all_parts_one_after_the_other(store: Store, mixture: DataSection) -> None:
    mixed = open_validation(mixture, store, seed=1)
    assert mixed is not None
    parts = [open_validation(section(dataset=name), store, seed=1) for name in ("a", "b")]
    read = [part.read(slots(0, part.num_samples)).tensors["tokens"] for part in parts if part is not None]
    batch = mixed.read(slots(0, mixed.num_samples))
    assert torch.equal(batch.tensors["tokens"], torch.cat(read))
    assert batch.sample_ids.tolist() == list(range(mixed.num_samples))
    with pytest.raises(DataError, match="is beyond the"):
        mixed.read(slots(mixed.num_samples, mixed.num_samples + 1))


def test_documents_of_a_mixture_are_padded_alike(store: Store, mixture: DataSection) -> None:
    wanted = mixture.model_copy(update={"reading": "documents", "sequence_length": 400})
    mixed = open_split(wanted, store, "train", seed=1)
    widths = {mixed.read(slots(start, start + 3)).tensors["tokens"].shape[1] for start in range(0, 60, 3)}
    assert len(widths) == 1
    assert mixed.lengths(slots(0, 5)) is not None


def test_a_part_may_join_a_run(store: Store, mixture: DataSection) -> None:
    plain = open_split(section(dataset="a"), store, "train", seed=1, global_batch=12)
    mixed = open_split(mixture, store, "train", seed=1, global_batch=12)
    mixed.go_on(plain.position(5), step=5)
    read = np.array(ids(mixed, 60, 460))
    of_a = read[read < plain.num_samples]
    assert of_a.tolist() == ids(plain, 60, 60 + len(of_a))
    assert len(of_a) < 400


def test_datasets_of_different_kind_are_not_mixed(
    store: Store, build: Build, stories: list[str], mixture: DataSection
) -> None:
    build(stories, name="b", tokenizer="chars")
    parts = ({"dataset": "a", "weight": 3.0}, {"dataset": "b", "weight": 1.0})
    with pytest.raises(DataError, match="a and b cannot be mixed: they differ in tokenizer"):
        open_split(DataSection.model_validate({"mixture": parts}), store, "train", seed=1)


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
    assert (numbers.plan.version, numbers.num_samples, numbers.bytes_per_token) == ("numbers", 30, None)
    assert (numbers.facts.vocabulary, numbers.targets_per_sample, numbers.files) == (None, 1, {})


def test_a_process_that_only_decodes_needs_no_torch() -> None:
    code = (
        "import sys\n"
        "from torchrelay.data import build, dataset, loader, publish, reading, source, verify\n"
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
