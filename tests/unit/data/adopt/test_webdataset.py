import gzip
import io

import numpy as np
import pytest

from tests.unit.data.adopt.conftest import Place
from tests.unit.data.adopt.test_tar import make_tar
from torchrelay.core.errors import DataError


def npy(array: object, **options: object) -> bytes:
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


GOOD = [("a.jpg", b"1"), ("a.cls", b"4"), ("b.jpg", b"2"), ("b.cls", b"5")]


def refuse(local: Place, files: list[tuple[str, bytes]], message: str) -> None:
    local.data.put("0.tar", make_tar(GOOD))
    local.data.put("1.tar", make_tar(files))
    with pytest.raises(DataError, match=message):
        local.adopt()
    assert local.nothing_published()


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([("c.jpg", b"")], "1.tar: sample 'c': it has no 'cls'"),
        ([*GOOD, ("c.cls", b"1")], "1.tar: sample 'c': it has no 'jpg'"),
        ([("c.jpg", b""), ("c.cls", b"1"), ("c.txt", b"")], "sample 'c': it has 'txt', which others do not"),
        ([*GOOD, ("a.jpg", b"1"), ("a.cls", b"4")], "1.tar: the key 'a' comes twice"),
        ([("a.jpg", b"1"), ("a.JPG", b"1"), ("a.cls", b"4")], "sample 'a' has two files 'jpg'"),
        ([("a.jpg", b"1"), ("a.cls", b"cat")], "'a.cls' at byte 1,536: b'cat' is not a whole number"),
    ],
)
def test_a_sample_that_is_not_like_the_first_is_named(
    local: Place, files: list[tuple[str, bytes]], message: str
) -> None:
    refuse(local, files, message)


def test_a_sample_with_the_files_in_another_order_is_like_the_others(local: Place) -> None:
    local.data.put("0.tar", make_tar(GOOD))
    local.data.put("1.tar", make_tar([("c.cls", b"6"), ("c.jpg", b"3")]))
    local.adopt()
    assert local.samples()[-1] == {"jpg": b"3", "cls": 6}


def test_files_without_an_extension_are_left_out_and_counted(local: Place) -> None:
    local.data.put("0.tar", make_tar([("README", b"x"), *GOOD, (".DS_Store", b"y")]))
    manifest = local.adopt().manifest
    assert (manifest.build.skipped, manifest.totals("train").samples) == (2, 2)


def test_a_text_that_is_not_utf8_or_json_is_named_with_its_byte(local: Place) -> None:
    local.data.put("0.tar", make_tar([("a.txt", b"\xff")]))
    with pytest.raises(DataError, match=r"0.tar: 'a.txt' at byte 512: 'utf-8' codec"):
        local.adopt()
    local.data.put("0.tar", make_tar([("a.json", b"{")]))
    with pytest.raises(DataError, match=r"0.tar: 'a.json' at byte 512: Expecting property name"):
        local.adopt()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            npy(np.array([{}], object), allow_pickle=True),
            "holds object, not numbers; pickled objects are never",
        ),
        (npy(np.arange(3))[:-1], "an array of 152 bytes is not 151 bytes long"),
        (b"no", "it is not an npy file"),
        (npy(np.array(["a"])), "holds <U1, not numbers"),
        (npy(np.arange(3)).replace(b"'descr'", b"'xxxxx'"), "cannot be read"),
        (npy(np.arange(3))[:20], "its npy header is cut off"),
    ],
)
def test_an_npy_file_that_holds_no_numbers_is_refused(local: Place, content: bytes, message: str) -> None:
    local.data.put("0.tar", make_tar([("a.npy", content)]))
    with pytest.raises(DataError, match=rf"0.tar: 'a.npy' at byte 512: .*{message}"):
        local.adopt()


@pytest.mark.parametrize("name", ["pkl", "PYD", "meta.pickle", "pth"])
def test_a_pickle_is_refused_by_its_name(local: Place, name: str) -> None:
    local.data.put("0.tar", make_tar([*GOOD[:2], (f"a.{name}", b"cbuiltins\nprint\n")]))
    with pytest.raises(DataError, match=rf"0.tar: 'a.{name}' at byte 2,560 is a pickle.*leave the column"):
        local.adopt()
    assert local.nothing_published()


def test_arrays_of_another_type_are_named(local: Place) -> None:
    files = [("a.npy", npy(np.zeros(2, np.int32))), ("b.npy", npy(np.zeros(2, np.float32)))]
    local.data.put("0.tar", make_tar(files))
    with pytest.raises(DataError, match="0.tar: sample 'b': 'npy' is float32, in others int32"):
        local.adopt()


def test_arrays_of_any_order_and_shape_are_read(local: Place) -> None:
    arrays = [np.arange(6).reshape(2, 3), np.asfortranarray(np.arange(6).reshape(3, 2)), np.array(7)]
    local.data.put("0.tar", make_tar([(f"{n}.npy", npy(array)) for n, array in enumerate(arrays)]))
    (column,) = local.adopt().manifest.content.columns
    assert (column.dtype, column.shape) == ("int64", None)
    for sample, array in zip(local.samples(), arrays, strict=True):
        assert np.array_equal(sample["npy"], array) and sample["npy"].shape == array.shape


@pytest.mark.parametrize("size", [100, 400])
def test_a_compressed_tar_that_is_cut_off_is_named(local: Place, size: int) -> None:
    rng = np.random.default_rng(0)
    data = gzip.compress(make_tar([("a.bin", rng.bytes(2000))]))
    local.data.put("0.tar.gz", data[:size])
    with pytest.raises(DataError, match="0.tar.gz: .*cut off at byte"):
        local.adopt()


@pytest.mark.parametrize("files", [[], [("README", b"")]])
def test_a_tar_without_samples_is_refused_as_the_first_and_left_out_later(
    local: Place, files: list[tuple[str, bytes]]
) -> None:
    local.data.put("0.tar", make_tar(files))
    local.data.put("1.tar", make_tar(GOOD))
    with pytest.raises(DataError, match="0.tar holds no sample"):
        local.adopt()
    local.data.put("2.tar", make_tar(files))
    local.data.delete("0.tar")
    assert [entry.key for entry in local.adopt().manifest.splits["train"]] == ["1.tar"]
