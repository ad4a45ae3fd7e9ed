import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchrelay.core.errors import DataError
from torchrelay.data.adopt.place import Target, choose_files, divide_files, expand_braces, split_url


@pytest.mark.parametrize(
    ("url", "base", "pattern"),
    [
        ("s3://bucket/data", "s3://bucket/data", None),
        ("s3://bucket/data/", "s3://bucket/data", None),
        ("s3://bucket/data/part-{00..09}.tar", "s3://bucket/data", "part-{00..09}.tar"),
        ("s3://bucket/{train,val}/*.tar", "s3://bucket", "{train,val}/*.tar"),
        ("s3://bucket/x/a.tar", "s3://bucket/x", "a.tar"),
        ("memory://name/*.parquet", "memory://name", "*.parquet"),
        ("file:///data/a.tar.gz", "file:///data", "a.tar.gz"),
        ("/data/corpus.bin", "/data", "corpus.bin"),
        ("/*.tar", "/", "*.tar"),
        ("data/a*/b.tar", "data", "a*/b.tar"),
        ("*.tar", ".", "*.tar"),
        ("corpus.idx", ".", "corpus.idx"),
        ("a.folder/b", "a.folder/b", None),
    ],
)
def test_a_url_is_cut_before_its_first_wildcard_or_file(url: str, base: str, pattern: str | None) -> None:
    assert split_url(url) == Target(base, pattern)


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("a", ["a"]),
        ("a{x,y}", ["ax", "ay"]),
        ("{08..11}", ["08", "09", "10", "11"]),
        ("{a,b}-{1..2}", ["a-1", "a-2", "b-1", "b-2"]),
        ("{3..3}", ["3"]),
        ("{}", [""]),
    ],
)
def test_braces_stand_for_names(pattern: str, names: list[str]) -> None:
    assert expand_braces(pattern) == names


@pytest.mark.parametrize("pattern", ["{5..4}", "{0..99999999}", "{0..99999}{0..99999}"])
def test_braces_that_stand_for_no_or_too_many_names_are_refused(pattern: str) -> None:
    with pytest.raises(DataError, match="names"):
        expand_braces(pattern)


@settings(deadline=None)
@given(first=st.integers(0, 50), count=st.integers(1, 50), width=st.integers(1, 6))
def test_a_range_counts_without_a_gap(first: int, count: int, width: int) -> None:
    last = first + count - 1
    names = expand_braces(f"{{{first:0{width}d}..{last:0{width}d}}}")
    assert [int(name) for name in names] == list(range(first, last + 1))
    assert all(len(name) >= width for name in names)


KEYS = ["a/1.tar", "a/2.tar", "b/1.tar", "top.tar", ".hidden.tar", "a/.git/x.tar"]


def test_a_star_does_not_cross_a_folder_and_hidden_files_are_left_out() -> None:
    assert choose_files(KEYS, "*.tar") == ["top.tar"]
    assert choose_files(KEYS, "*/1.tar") == ["a/1.tar", "b/1.tar"]
    assert choose_files(KEYS, "{b,a}/[12].tar") == ["a/1.tar", "a/2.tar", "b/1.tar"]
    assert choose_files(KEYS, None) == ["a/1.tar", "a/2.tar", "b/1.tar", "top.tar"]


def test_names_that_braces_spell_out_must_all_be_there() -> None:
    with pytest.raises(
        DataError, match=r"^a/0.tar, a/3.tar, a/4.tar and 1 more of 'a/\{0..5\}.tar' are missing"
    ):
        choose_files(KEYS, "a/{0..5}.tar")
    with pytest.raises(DataError, match="^c.tar of 'c.tar' is missing"):
        choose_files(KEYS, "c.tar")


def test_folders_with_the_usual_names_are_splits() -> None:
    keys = ["train/a", "train/x/b", "val/c", "test/d"]
    assert divide_files(keys, {}) == {
        "train": ("train/a", "train/x/b"),
        "validation": ("val/c",),
        "test": ("test/d",),
    }
    assert divide_files(["x/a", "y/b"], {}) == {"train": ("x/a", "y/b")}


def test_a_file_outside_of_the_splits_is_named() -> None:
    with pytest.raises(DataError, match="^other/b is in none of the folders train"):
        divide_files(["train/a", "other/b"], {})
    assert divide_files(["train/a", "other/b"], {"train": "other/"}) == {"train": ("other/b",)}


@pytest.mark.parametrize(
    ("keys", "wanted", "message"),
    [
        (["val/a"], {}, "there is no train split, only validation"),
        (["a/x"], {"train": "a", "test": "b"}, "there is no data in the folder 'b'"),
        (["ab/x"], {"train": "a"}, "there is no data in the folder 'a'"),
    ],
)
def test_an_empty_split_is_refused(keys: list[str], wanted: dict[str, str], message: str) -> None:
    with pytest.raises(DataError, match=message):
        divide_files(keys, wanted)
