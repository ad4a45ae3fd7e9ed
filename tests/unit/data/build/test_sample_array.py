from pathlib import Path

import numpy as np
import pytest

from tests.unit.data.build.sample_support import bad, build, good
from torchrelay.core.errors import DataError
from torchrelay.data.build import sample_array
from torchrelay.data.build.sample_array import NpyFiles, NpzFiles


def test_rows_of_npy_files_are_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "a.npy", np.arange(12, dtype=np.int16).reshape(4, 3))
    np.save(tmp_path / "b.npy", np.arange(12, 18, dtype=np.int16).reshape(2, 3))
    monkeypatch.setattr(sample_array, "UNIT_BYTES", 12)
    source = NpyFiles(patterns=[str(tmp_path / "*.npy")])
    assert [unit.stop - unit.start for unit in source.units()] == [2, 2, 2]
    built = build(source)
    assert built.columns == {"data": ("int16", (3,))}
    assert np.stack([sample["data"] for sample in built.samples]).ravel().tolist() == list(range(18))


def test_numbers_are_samples_too(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([1.5, 2.5]))
    assert build(NpyFiles(patterns=[str(tmp_path / "a.npy")])).samples == [{"data": 1.5}, {"data": 2.5}]


def test_files_of_another_shape_are_named_with_their_row(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((2, 3)))
    np.save(tmp_path / "b.npy", np.zeros((2, 4)))
    source = NpyFiles(patterns=[str(tmp_path / "*.npy")])
    with pytest.raises(
        DataError, match=r"shapes: \(3,\) at .*a.npy: row 1, \(4,\) at .*b.npy: row 1"
    ) as caught:
        build(source)
    assert caught.value.hint == "if that is meant, declare it with --ragged data"
    built = build(source, ragged=["data"])
    assert built.columns == {"data": ("float64", None)}
    assert [len(sample["data"]) for sample in built.samples] == [3, 3, 4, 4]


@pytest.mark.parametrize(("save", "reason"), [
    (lambda path: path.write_bytes(b"nothing"), "cannot read"),
    (lambda path: np.save(path, np.array([{}], object), allow_pickle=True), "cannot read .*pickle|object"),
    (lambda path: np.save(path, np.array(1.0)), "a single number, no rows"),
    (lambda path: path.write_bytes(path.with_name("whole.dat").read_bytes()[:-1]), "cannot read"),
])  # fmt: skip
def test_a_file_that_holds_no_rows_is_named(tmp_path: Path, save: object, reason: str) -> None:
    with (tmp_path / "whole.dat").open("wb") as file:
        np.save(file, np.arange(9))
    save(tmp_path / "a.npy")
    with pytest.raises(DataError, match=reason):
        NpyFiles(patterns=[str(tmp_path / "a.npy")]).units()


def test_rows_of_the_arrays_of_npz_are_samples(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.arange(6, dtype=np.float32).reshape(3, 2), y=np.array([1, 0, 1]))
    np.savez_compressed(tmp_path / "b.npz", x=np.ones((1, 2), np.float32), y=np.array([7]))
    built = build(NpzFiles(patterns=[str(tmp_path / "*.npz")]), label_column="y")
    assert built.columns == {"label": ("int64", ()), "x": ("float32", (2,))}
    assert [sample["label"] for sample in built.samples] == [1, 0, 1, 2]
    assert built.plan.label_names == ("0", "1", "7")


def test_an_npz_file_can_be_one_sample(tmp_path: Path) -> None:
    for number in range(2):
        np.savez(tmp_path / f"{number}.npz", image=np.full((2, 2), number, np.uint8), n=np.int64(number))
    source = NpzFiles(patterns=[str(tmp_path / "*.npz")], rows=False)
    built = build(source)
    assert built.columns == {"image": ("uint8", (2, 2)), "n": ("int64", ())}
    assert [sample["n"] for sample in built.samples] == [0, 1]


def test_arrays_of_different_length_are_refused_with_a_way_out(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((3, 2)), y=np.zeros(2))
    (found,) = bad(NpzFiles(patterns=[str(tmp_path / "a.npz")]))
    assert "x (3, 2), y (2,)" in found.why and "--whole" in found.hint


def test_a_damaged_npz_is_bad_and_the_others_are_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros(2))
    np.savez(tmp_path / "b.npz", x=np.zeros(3))
    (tmp_path / "a.npz").write_bytes((tmp_path / "a.npz").read_bytes()[:-40])
    source = NpzFiles(patterns=[str(tmp_path / "*.npz")])
    (found,) = bad(source)
    assert "a.npz" in found.where
    assert len(build(source, on_bad="skip").samples) == 3


def test_a_file_that_changes_while_it_is_read_is_noticed(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros(3))
    source = NpyFiles(patterns=[str(tmp_path / "a.npy")])
    (unit,) = source.units()
    assert len(good(source)) == 3
    np.save(tmp_path / "a.npy", np.zeros(4))
    with pytest.raises(DataError, match="changed while it was read"):
        list(unit.samples())
