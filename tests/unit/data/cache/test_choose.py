"""Which way shards are read, and the planner that comes with it."""

from pathlib import Path

import pytest

from tests.unit.data.cache.support import SIZE, ToyStore, content, fill, open_cache, shard_files
from torchrelay.core.errors import RecipeError
from torchrelay.data.cache.agenda import Route
from torchrelay.data.cache.choose import cache_folder, check_room, open_bytes, start_planner
from torchrelay.data.cache.fetched import FetchedBytes
from torchrelay.data.cache.node_cache import NodeCache
from torchrelay.data.dataset import Dataset
from torchrelay.data.manifest import BuildRecord, Content, make_manifest
from torchrelay.data.open_shards import OpenShards
from torchrelay.data.order.order import Order, OrderSettings
from torchrelay.data.order.outlook import SlotPattern
from torchrelay.data.shard_bytes import LocalBytes
from torchrelay.recipe.data_schema import CacheSection
from torchrelay.store.base import Store
from torchrelay.store.open import open_store

BUILD = BuildRecord(arguments={}, code="1", created="")


def dataset_in(store: Store, **more: object) -> Dataset:
    entry = fill(ToyStore(), 1)[0]
    split = (type(entry)(**{**{name: getattr(entry, name) for name in entry.__slots__}, **more}),)
    content = Content(kind="samples", format="mds", splits={"train": split})
    return Dataset(manifest=make_manifest("d", content, BUILD), store=store)


def test_files_of_this_machine_are_read_where_they_lie(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    assert isinstance(open_bytes(dataset_in(store)), LocalBytes)
    packed = dataset_in(store, unpack="gzip", unpacked_bytes=5)
    assert isinstance(open_bytes(packed, CacheSection(folder=str(tmp_path))), NodeCache)


def test_objects_elsewhere_go_through_the_cache() -> None:
    assert isinstance(open_bytes(dataset_in(open_store("memory://choose"))), FetchedBytes)
    assert isinstance(open_bytes(dataset_in(open_store("s3://bucket/prefix"))), NodeCache)


def test_the_folder_is_the_recipes_then_the_environments_then_the_users(tmp_path: Path) -> None:
    assert cache_folder(CacheSection(folder="/a/b"), {"TORCHRELAY_CACHE": "/c"}) == Path("/a/b/shards")
    assert cache_folder(CacheSection(), {"TORCHRELAY_CACHE": "/c"}) == Path("/c/shards")
    assert cache_folder(CacheSection(), {}) == Path.home() / ".cache" / "torchrelay" / "shards"


def open_toy(root: Path, budget: int) -> tuple[ToyStore, OpenShards[memoryview], Route]:
    store = ToyStore()
    entries = fill(store, 20)
    order = Order([40] * 20, OrderSettings(seed=3, lanes=2, window_shards=5, shuffle=True))
    shards = OpenShards(open_cache(store, root, budget), entries, lambda view, entry, index: view)
    return store, shards, Route(order, SlotPattern(8, 0, 8), 0)


def test_a_cache_that_is_too_small_is_refused_before_anything_is_fetched(tmp_path: Path) -> None:
    store, shards, route = open_toy(tmp_path, 11 * SIZE - 1)
    check_room([(shards, route)], CacheSection(size=11 * SIZE))
    with pytest.raises(RecipeError, match="11,000 bytes"):
        check_room([(shards, route)], CacheSection(size=11 * SIZE - 1))
    assert store.gets.total() == 0


def test_the_parts_of_a_mixture_need_room_together(tmp_path: Path) -> None:
    _, shards, route = open_toy(tmp_path, 8 * SIZE)
    check_room([(shards, route), (shards, route)], CacheSection(size=22 * SIZE))
    with pytest.raises(RecipeError, match="22,000 bytes"):
        check_room([(shards, route), (shards, route)], CacheSection(size=22 * SIZE - 1))


def test_files_of_this_machine_need_no_room() -> None:
    store = ToyStore()
    shards = OpenShards(FetchedBytes(store, "", store, ""), fill(store, 2), lambda view, entry, index: view)
    order = Order([1, 1], OrderSettings(seed=1, lanes=1, window_shards=1, shuffle=True))
    check_room([(shards, Route(order, None, 0))], CacheSection(size=1))


def test_full_staging_returns_when_all_is_here(tmp_path: Path) -> None:
    store, shards, route = open_toy(tmp_path, 20 * SIZE)
    told: list[int] = []
    section = CacheSection(size=20 * SIZE, staging="full")
    planner = start_planner(shards, route, section, progress=lambda done, total: told.append(done))
    assert len(shard_files(tmp_path)) == 20 == store.gets.total() and told[-1] == 20 * SIZE
    assert planner is not None
    planner.close()


def test_full_staging_that_fails_leaves_no_plan(tmp_path: Path) -> None:
    store, shards, route = open_toy(tmp_path, 20 * SIZE)
    store.objects["s7"] = b"damaged"
    with pytest.raises(Exception, match="s7"):
        start_planner(shards, route, CacheSection(size=20 * SIZE, staging="full"))
    assert list(tmp_path.glob("plans/*")) == []


def test_sources_without_a_cache_need_no_planner() -> None:
    store = ToyStore()
    entries = fill(store, 2)
    shards = OpenShards(FetchedBytes(store, "", store, ""), entries, lambda view, entry, index: view)
    order = Order([1, 1], OrderSettings(seed=1, lanes=1, window_shards=1, shuffle=True))
    assert start_planner(shards, Route(order, None, 0), CacheSection()) is None
    assert bytes(shards.shard(1)) == content(1)
