from collections.abc import Callable
from typing import Any

import pytest

from torchrelay.core.errors import DataError
from torchrelay.data.dataset import list_datasets, list_refs, open_dataset, read_manifest, read_ref
from torchrelay.data.layout import manifest_key, ref_key
from torchrelay.store.base import Store

Build = Callable[..., Any]


@pytest.fixture
def versions(build: Build, stories: list[str]) -> list[str]:
    """Two versions of dataset d."""
    return [build(stories[:count]).manifest.version for count in (20, 40)]


def test_the_newest_ref_is_the_default(store: Store, versions: list[str]) -> None:
    assert open_dataset(store, "d").manifest.version == versions[1]


def test_a_ref_or_the_start_of_a_version_names_an_older_one(store: Store, versions: list[str]) -> None:
    for pin in ("1", versions[0][:6], versions[0][:12].upper(), versions[0]):
        assert open_dataset(store, f"d@{pin}").manifest.version == versions[0]
    assert open_dataset(store, "d").folder == "datasets/d"


def test_a_number_that_is_no_ref_may_be_a_version(store: Store, versions: list[str]) -> None:
    (first, second) = versions
    fake = "123456" + "0" * 58
    store.put(manifest_key("d", fake), store.get(manifest_key("d", first)))
    with pytest.raises(DataError, match=f"is the manifest of d version {first}"):
        open_dataset(store, "d@123456")


def test_a_missing_dataset_is_answered_with_those_there(
    store: Store, versions: list[str], build: Build
) -> None:
    build(["one text", "another", "third", "fourth one", "5"], name="shakespeare")
    with pytest.raises(DataError, match="no dataset 'shakespear' in memory://.*; did you mean 'shakespeare'"):
        open_dataset(store, "shakespear@1")
    with pytest.raises(DataError) as caught:
        open_dataset(store, "x")
    assert "datasets there: d, shakespeare" in caught.value.hint


def test_an_empty_store_says_so(store: Store) -> None:
    with pytest.raises(DataError) as caught:
        open_dataset(store, "x")
    assert "there is none there yet" in caught.value.hint
    assert list_datasets(store) == []


def test_a_missing_ref_or_version_is_answered_with_those_there(store: Store, versions: list[str]) -> None:
    with pytest.raises(DataError, match="has no ref 7") as caught:
        open_dataset(store, "d@7")
    assert "refs are 1 to 2" in caught.value.hint
    with pytest.raises(DataError, match="has no version that begins with ffffff") as caught:
        open_dataset(store, "d@ffffff")
    assert versions[0][:12] in caught.value.hint


def test_a_start_that_two_versions_share_is_refused(store: Store, versions: list[str]) -> None:
    other = versions[0][:8] + "0" * 56
    store.put(manifest_key("d", other), b"{}")
    with pytest.raises(DataError, match="2 versions of 'd' begin with"):
        open_dataset(store, f"d@{versions[0][:6]}")


def test_shards_and_versions_without_a_ref_are_no_dataset(store: Store, versions: list[str]) -> None:
    for number in list_refs(store, "d"):
        store.delete(ref_key("d", number))
    assert list_datasets(store) == []
    with pytest.raises(DataError, match="there is no dataset 'd'"):
        open_dataset(store, "d")


def test_a_damaged_ref_or_manifest_is_named(store: Store, versions: list[str]) -> None:
    store.put(manifest_key("d", versions[1]), b"{}")
    with pytest.raises(DataError, match=f"versions/{versions[1]}/manifest.json has schema None"):
        open_dataset(store, "d")
    store.put(ref_key("d", 2), b'{"version": ')
    with pytest.raises(DataError, match=r"datasets/d/refs/000002\.json is damaged"):
        open_dataset(store, "d")
    store.delete(manifest_key("d", versions[0]))
    with pytest.raises(DataError, match=r"manifest\.json is missing"):
        read_manifest(store, "d", versions[0])


def test_refs_tell_version_and_time(store: Store, versions: list[str]) -> None:
    assert read_ref(store, "d", 2) == (2, versions[1], "1970-01-01T00:00:00.000Z")
