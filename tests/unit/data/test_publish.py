from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from torchrelay.data.dataset import list_refs, open_dataset, read_ref
from torchrelay.data.layout import manifest_key
from torchrelay.data.publish import publish
from torchrelay.store.base import Buffer, Store

Build = Callable[..., Any]


def test_going_back_to_an_older_version_is_a_new_ref(store: Store, build: Build, stories: list[str]) -> None:
    old = build(stories[:20])
    build(stories)
    again = publish(store, old.manifest, b"tokenizer")
    assert again == (3, True)
    assert open_dataset(store, "d").manifest.version == old.manifest.version


def test_the_first_record_of_a_version_is_kept(store: Store, build: Build, stories: list[str]) -> None:
    version = build(stories).manifest.version
    before = store.get(manifest_key("d", version))
    build(stories, shard_bytes=1024, split="document")
    assert store.get(manifest_key("d", version)) == before


def test_a_damaged_manifest_is_written_anew(store: Store, build: Build, stories: list[str]) -> None:
    version = build(stories).manifest.version
    store.put(manifest_key("d", version), b"{")
    build(stories)
    assert open_dataset(store, "d").manifest.version == version


def test_the_ref_comes_last(
    build: Build, stories: list[str], store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys: list[str] = []
    put = type(store).put

    def recording(self: Store, key: str, data: Buffer, *, if_absent: bool = False) -> None:
        keys.append(key.split("/")[2])
        put(self, key, data, if_absent=if_absent)

    monkeypatch.setattr(type(store), "put", recording)
    build(stories)
    assert keys == ["versions", "versions", "refs"]


def test_publishers_at_once_get_a_ref_each(store: Store, build: Build, stories: list[str]) -> None:
    made = [build(stories[:count], name=f"other{count}").manifest for count in range(20, 28)]
    renamed = [
        type(one)(**{name: getattr(one, name) for name in one.__slots__} | {"name": "d"}) for one in made
    ]
    with ThreadPoolExecutor(8) as pool:
        published = list(pool.map(lambda manifest: publish(store, manifest, b"t"), renamed))
    assert sorted(one.number for one in published) == list(range(1, 9)) == list_refs(store, "d")
    found = {one.number: manifest.version for one, manifest in zip(published, renamed, strict=True)}
    assert {n: read_ref(store, "d", n).version for n in list_refs(store, "d")} == found
