import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest

from tests.unit.data.build.sample_support import bad, build, good, picture
from torchrelay.core.errors import DataError
from torchrelay.data.build.sample_tar import TarFiles, column_name, split_name


def npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def write(path: Path, files: dict[str, bytes], mode: str = "w") -> TarFiles:
    with tarfile.open(path, mode) as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return TarFiles(patterns=[str(path.parent / "*")])


def make_files(count: int = 3) -> dict[str, bytes]:
    files = {}
    for number in range(count):
        key = f"set/{number:03}"
        files[f"{key}.jpg"] = picture(seed=number)
        files[f"{key}.cls"] = b"%d\n" % (number % 2)
        files[f"{key}.json"] = json.dumps({"n": number}).encode()
        files[f"{key}.txt"] = f"ä {number}".encode()
        files[f"{key}.feature.npy"] = npy(np.full(3, number, np.float32))
        files[f"{key}.raw"] = b"\x00" * number
    return files


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2"])
def test_files_of_equal_stem_are_one_sample(tmp_path: Path, mode: str) -> None:
    files = make_files()
    built = build(write(tmp_path / "a.tar", files, mode))
    assert built.columns == {
        "feature.npy": ("float32", (3,)),
        "image": ("jpeg", None),
        "json": ("json", None),
        "label": ("int64", ()),
        "raw": ("bytes", None),
        "txt": ("str", None),
    }
    sample = built.samples[2]
    assert sample["image"] == files["set/002.jpg"]
    assert (sample["label"], sample["json"], sample["txt"], sample["raw"]) == (
        0,
        {"n": 2},
        "ä 2",
        b"\x00\x00",
    )
    assert sample["feature.npy"].tolist() == [2, 2, 2]
    assert built.plan.label_names == ("0", "1")


def test_samples_are_in_the_order_of_the_files(tmp_path: Path) -> None:
    write(tmp_path / "b.tar", {"z.txt": b"3", "y.txt": b"4"})
    source = write(tmp_path / "a.tar", {"1.txt": b"1", "2.txt": b"2"})
    assert [sample.values["txt"] for sample in good(source)] == ["1", "2", "3", "4"]
    assert [sample.key for sample in good(source)] == ["1", "2", "z", "y"]


def test_names_are_cut_at_the_first_dot_of_the_last_part() -> None:
    assert split_name("a.b/c.left.JPG") == ("a.b/c", "left.jpg")
    assert split_name("x") == ("x", "")
    assert [column_name(s) for s in ("jpg", "webp", "left.jpg", "cls", "")] == [
        "image", "image", "left.jpg", "cls", "data"
    ]  # fmt: skip


@pytest.mark.parametrize(("name", "data", "why"), [
    ("1.json", b"{", "Expecting property name"),
    ("1.txt", b"\xff", "can't decode byte"),
    ("1.npy", b"nothing", "cannot|magic|pickle"),
    ("1.png", b"", "has two files for the column 'image'"),
])  # fmt: skip
def test_a_bad_file_is_named_and_the_rest_goes_on(tmp_path: Path, name: str, data: bytes, why: str) -> None:
    source = write(tmp_path / "a.tar", {"0.txt": b"x", "1.jpg": b"", name: data, "2.txt": b"x"})
    (found,) = bad(source)
    assert "a.tar: 1" in found.where
    with pytest.raises(DataError, match=why):
        raise found.error()


def test_objects_in_arrays_are_never_loaded(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    np.save(buffer, np.array([{"a": 1}], object), allow_pickle=True)
    (found,) = bad(write(tmp_path / "a.tar", {"1.npy": buffer.getvalue()}))
    assert "allow_pickle" in found.why


def test_a_cut_off_tar_tells_how_far_it_could_be_read(tmp_path: Path) -> None:
    source = write(tmp_path / "a.tar", {f"{n}.raw": bytes(3000) for n in range(5)})
    path = tmp_path / "a.tar"
    path.write_bytes(path.read_bytes()[: 2 * 3584 + 700])
    samples = [unit for unit in source.units()[0].samples()]
    assert "the rest of the file cannot be read" in samples[-1].why
    assert len(samples) == 3


def test_a_file_that_is_no_tar_is_bad(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(b"x" * 2000)
    (found,) = bad(TarFiles(patterns=[str(tmp_path / "a.tar")]))
    assert "cannot be read" in found.why


def test_a_sample_without_one_of_the_files_is_named(tmp_path: Path) -> None:
    files = make_files()
    del files["set/001.txt"]
    source = write(tmp_path / "a.tar", files)
    with pytest.raises(DataError, match=r"a.tar: set/001 lacks txt, compared with .*a.tar: set/000"):
        build(source)
    built = build(source, on_bad="skip")
    assert len(built.samples) == 2
    assert "set/001" in built.problems[0] and "txt" in built.problems[0]
