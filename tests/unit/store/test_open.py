from pathlib import Path

import pytest

from torchrelay.core.errors import StoreError
from torchrelay.store.files import FileStore
from torchrelay.store.objects import ObjectStore
from torchrelay.store.open import check_writable, open_store


def test_a_path_and_a_file_url_are_the_same_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    expected = f"file://{tmp_path}/store"
    for url in (
        f"{tmp_path}/store",
        f"file://{tmp_path}/store",
        "store",
        "./store",
        "file://./store",
        "~/store",
    ):
        assert open_store(url).url == expected


@pytest.mark.parametrize("name", ["a#b", "a?b=c", "a%20b", "a b", "[x"])
def test_a_folder_may_have_any_name(tmp_path: Path, name: str) -> None:
    store = open_store(str(tmp_path / name))
    store.put("key", b"1")
    assert open_store(store.url).get("key") == b"1"
    assert (tmp_path / name / "key").read_bytes() == b"1"


def test_memory_is_shared_by_name_within_the_process() -> None:
    open_store("memory://shared-by-name/a").put("b/c", b"1")
    assert open_store("memory://shared-by-name").get("a/b/c") == b"1"
    assert open_store("memory://shared-by-name/a/b/").get("c") == b"1"
    assert list(open_store("memory://another-name").list("")) == []


@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_a_url_without_a_bucket_says_how_one_is_written(scheme: str) -> None:
    with pytest.raises(StoreError) as caught:
        open_store(f"{scheme}://")
    assert caught.value.message == f"'{scheme}://' names no bucket"
    assert caught.value.hint == f"write {scheme}://bucket/prefix"


def test_an_object_store_url_is_shown_without_its_final_slash() -> None:
    store = open_store("s3://bucket/some/prefix/")
    assert isinstance(store, ObjectStore)
    assert store.url == "s3://bucket/some/prefix"
    assert store.local_path("a") is None


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("memry://x", r"no store for memry://; did you mean 'memory'\?"),
        ("http://host/x", "no store for http://"),
        ("s3://", "names no bucket"),
        ("s3:///prefix", "names no bucket"),
        ("s3://bucket/../x", "is not a key"),
        ("://x", "no store for"),
    ],
)
def test_a_url_of_no_store_is_refused(url: str, reason: str) -> None:
    with pytest.raises(StoreError, match=reason) as caught:
        open_store(url)
    assert caught.value.hint


def test_a_writable_place_is_probed_without_a_trace(tmp_path: Path) -> None:
    check_writable(str(tmp_path), "runs/a")
    assert list(tmp_path.iterdir()) == []


def test_a_place_under_a_file_is_not_writable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        StoreError, match=r"cannot write .*/file/runs/\.probe.*: (Not a directory|File exists)"
    ):
        check_writable(str(tmp_path / "file"), "runs")


def test_a_full_disk_is_told_at_the_probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(FileStore, "put", full)
    with pytest.raises(StoreError, match="cannot write to file://.*: No space left on device"):
        check_writable(str(tmp_path), "runs")


def test_checking_a_place_leaves_nothing_behind(tmp_path: Path) -> None:
    check_writable(str(tmp_path / "a" / "store"), "runs/t")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "store").mkdir()
    check_writable(str(tmp_path / "store"), "runs/t")
    assert list((tmp_path / "store").iterdir()) == []
