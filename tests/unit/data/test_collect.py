from collections.abc import Callable
from typing import Any

import pytest

from torchrelay.core.errors import DataError
from torchrelay.data.collect import Waste, delete_waste, find_waste
from torchrelay.data.dataset import list_refs, open_dataset
from torchrelay.data.layout import manifest_key
from torchrelay.data.tag import create_tag
from torchrelay.data.verify import verify_dataset
from torchrelay.store.base import Store

Build = Callable[..., Any]
LATER = 4e9
"""A moment at which everything is old."""


def find(
    store: Store, keep_last: int | None = None, protected: tuple[str, ...] = (), **options: Any
) -> Waste:
    return find_waste(
        store, "d", **{"keep_last": keep_last, "protected": protected, "now_s": LATER, **options}
    )


def sweep(store: Store, waste: Waste) -> None:
    delete_waste(store, "d", waste, progress=lambda *_: None)


@pytest.fixture
def versions(store: Store, build: Build, stories: list[str]) -> list[str]:
    """Three versions, each with more documents than the one before."""
    return [build(stories[:count]).manifest.version for count in (20, 30, 40)]


def sound(store: Store, reference: str) -> bool:
    return verify_dataset(open_dataset(store, reference), progress=lambda *_: None) == []


def test_nothing_is_waste_while_every_ref_stays(store: Store, versions: list[str]) -> None:
    waste = find(store)
    assert (waste.refs, waste.versions, waste.files, waste.bytes) == ((), (), (), 0)


def test_remains_of_a_build_that_failed_go_once_they_are_old(store: Store, versions: list[str]) -> None:
    store.put("datasets/d/shards/aa/aaaa.tok", b"x" * 100)
    assert find(store).files == ("datasets/d/shards/aa/aaaa.tok",)
    assert find(store).bytes == 100
    young = find(store, now_s=0.0)
    assert (young.files, young.young) == ((), 1)
    sweep(store, find(store))
    assert all(sound(store, f"d@{number}") for number in (1, 2, 3))


def test_old_refs_go_with_what_only_they_need(store: Store, versions: list[str]) -> None:
    waste = find(store, keep_last=1)
    assert waste.refs == (1, 2)
    assert set(waste.versions) == set(versions[:2])
    before = sum(entry.size for entry in store.list("datasets/d"))
    refs = sum(entry.size for entry in store.list("datasets/d/refs"))
    sweep(store, waste)
    after = sum(entry.size for entry in store.list("datasets/d"))
    assert before - after == waste.bytes + refs * 2 // 3
    assert list_refs(store, "d") == [3]
    assert sound(store, "d")
    assert find(store).files == ()
    with pytest.raises(DataError, match="has no ref 1"):
        open_dataset(store, "d@1")


def test_tagged_versions_and_those_of_runs_stay(store: Store, versions: list[str]) -> None:
    create_tag(store, open_dataset(store, "d@1").manifest, "v1")
    waste = find(store, keep_last=1, protected=(versions[1],))
    assert (waste.refs, waste.versions, waste.files) == ((), (), ())
    assert find(store, keep_last=1).versions == (versions[1],)
    sweep(store, find(store, keep_last=1))
    assert sound(store, "d@v1") and sound(store, "d")


def test_numbers_of_refs_are_never_given_twice(
    store: Store, versions: list[str], build: Build, stories: list[str]
) -> None:
    sweep(store, find(store, keep_last=1))
    assert build(stories, validation=0.4).ref == 4


def test_a_damaged_manifest_stops_it(store: Store, versions: list[str]) -> None:
    store.put(manifest_key("d", versions[2]), b"{")
    with pytest.raises(DataError, match="is damaged"):
        find(store, keep_last=1)
