from pathlib import Path
from typing import Any

import numpy as np
import pytest

from torchrelay.core.errors import DataError
from torchrelay.data.build import sample_array, sample_job
from torchrelay.data.build.dataset_build import BuildResult, SampleRequest, build_dataset
from torchrelay.data.build.journal import Journal
from torchrelay.data.build.merge import Status
from torchrelay.data.build.sample_array import NpyFiles, NpzFiles
from torchrelay.data.build.sample_columns import SampleOptions
from torchrelay.data.build.sample_input import SampleInput
from torchrelay.data.formats.mds import open_mds
from torchrelay.data.manifest import Manifest
from torchrelay.store.base import Store
from torchrelay.store.files import FileStore


@pytest.fixture(autouse=True)
def small_units(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_array, "UNIT_BYTES", 400)
    monkeypatch.setattr(sample_job, "UNIT_BYTES", 400)


def save_rows(path: Path, first: int = 0, count: int = 100) -> str:
    np.save(path, np.arange(first * 10, (first + count) * 10).reshape(count, 10))
    return f"{path}.npy" if not path.suffix else str(path)


def build(
    store: Store, folder: Path, *sources: SampleInput, seen: list[Status] | None = None, **options: Any
) -> BuildResult:
    chosen = {"shard_bytes": 2048, "validation": 0.3, "work": folder / "work", **options}
    request = SampleRequest(sources=sources, **chosen)
    report = (lambda _: None) if seen is None else seen.append
    return build_dataset(store, "d", request, clock=lambda: 0.0, progress=report)


def rows(store: Store, manifest: Manifest, split: str) -> list[int]:
    """The first number of every sample."""
    found = []
    for entry in manifest.splits[split]:
        data = memoryview(store.get(f"datasets/d/{entry.key}"))
        shard = open_mds(data, entry, manifest.content.columns)
        found += [int(shard.sample(number)["data"][0]) // 10 for number in range(len(shard))]  # type: ignore[index]
    return found


def test_every_sample_is_in_one_split_in_its_order(store: Store, tmp_path: Path) -> None:
    source = NpyFiles(patterns=[save_rows(tmp_path / "a.npy")])
    seen: list[Status] = []
    manifest = build(store, tmp_path, source, test=0.1, seen=seen).manifest
    assert list(manifest.splits) == ["train", "validation", "test"]
    found = {split: rows(store, manifest, split) for split in manifest.splits}
    assert sorted(number for part in found.values() for number in part) == list(range(100))
    assert all(part == sorted(part) for part in found.values())
    assert manifest.content.kind == "samples" and manifest.content.tokenizer is None
    assert manifest.build.arguments["validation"] == 0.3
    assert (seen[-1].phase, seen[-1].documents, seen[-1].done) == ("encoding", 100, seen[-1].total)
    assert [status.phase for status in seen].count("reading") == 20


def test_processes_and_a_stop_in_between_decide_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = NpyFiles(patterns=[save_rows(tmp_path / "a.npy")])
    expected = build(FileStore(tmp_path / "one"), tmp_path, source).manifest.version
    assert build(FileStore(tmp_path / "two"), tmp_path, source, processes=2).manifest.version == expected
    add = Journal.add_shard
    left = [3]

    def stop(self: Journal, *arguments: Any) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        add(self, *arguments)

    monkeypatch.setattr(Journal, "add_shard", stop)
    with pytest.raises(KeyboardInterrupt):
        build(FileStore(tmp_path / "s"), tmp_path, source)
    monkeypatch.setattr(Journal, "add_shard", add)
    assert build(FileStore(tmp_path / "s"), tmp_path, source).manifest.version == expected


def test_a_sample_in_two_given_splits_is_refused(store: Store, tmp_path: Path) -> None:
    train = NpyFiles(patterns=[save_rows(tmp_path / "a.npy")], split="train")
    held = NpyFiles(patterns=[save_rows(tmp_path / "b.npy", 99, 5)], split="validation")
    with pytest.raises(DataError, match=r"in two splits: .*a.npy.*\(train\) and .*b.npy.*\(validation\)"):
        build(store, tmp_path, train, held)
    apart = NpyFiles(patterns=[save_rows(tmp_path / "b.npy", 100, 5)], split="validation")
    manifest = build(store, tmp_path, train, apart).manifest
    assert rows(store, manifest, "validation") == list(range(100, 105))
    assert manifest.build.arguments["more"] == [apart.describe()]


def test_bad_samples_stop_the_build_or_are_left_out(store: Store, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.arange(50))
    (tmp_path / "b.npz").write_bytes(b"no archive")
    source = NpzFiles(patterns=[f"{tmp_path}/*.npz"])
    with pytest.raises(DataError, match=r"b\.npz"):
        build(store, tmp_path, source)
    options = SampleOptions(on_bad="skip")
    result = build(store, tmp_path, source, on_bad="skip", options=options)
    assert result.manifest.build.skipped == 1 and "b.npz" in result.skipped[0]


@pytest.mark.parametrize(("validation", "split"), [(1e-9, "validation"), (1 - 1e-9, "train")])
def test_an_empty_split_is_named(store: Store, tmp_path: Path, validation: float, split: str) -> None:
    source = NpyFiles(patterns=[save_rows(tmp_path / "a.npy", 0, 3)])
    with pytest.raises(DataError, match=f"the {split} split would be empty: 3 samples, .*% for validation"):
        build(store, tmp_path, source, validation=validation)
    assert list(store.list("datasets")) == []


def test_no_shard_is_larger_than_asked_for_however_small_its_samples(store: Store, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(3000, dtype=np.uint8))
    source = NpyFiles(patterns=[f"{tmp_path}/a.npy"])
    entries = build(store, tmp_path, source, validation=0.0).manifest.splits["train"]
    assert all(1900 < entry.bytes <= 2048 for entry in entries[:-1]) and len(entries) > 10
