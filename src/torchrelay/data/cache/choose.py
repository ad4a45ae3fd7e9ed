"""How the shards of a dataset are reached from here, and how they are fetched ahead."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torchrelay.data.cache.agenda import Route
from torchrelay.data.cache.budget import check_budget, least_bytes, make_budget
from torchrelay.data.cache.fetched import FetchedBytes
from torchrelay.data.cache.folder import Folder
from torchrelay.data.cache.node_cache import NodeCache
from torchrelay.data.cache.origin import Origin
from torchrelay.data.cache.planner import Planner
from torchrelay.data.cache.stage import Progress, check_fits, choose_staged, stage
from torchrelay.data.dataset import Dataset
from torchrelay.data.figures import Meter
from torchrelay.data.open_shards import OpenShards
from torchrelay.data.shard_bytes import LocalBytes, ShardBytes, join_key
from torchrelay.recipe.data_schema import CacheSection
from torchrelay.store.open import open_store

_DEFAULT = CacheSection()


def open_bytes(dataset: Dataset, section: CacheSection = _DEFAULT) -> ShardBytes:
    """Files of this machine are mapped where they lie; everything else goes through the node's cache.

    What a store keeps in the memory of this process is copied from there. Touches no file yet.
    """
    store, folder = dataset.shard_place()
    place = (store, folder, dataset.store, dataset.folder)
    if store.url.startswith("memory://"):
        return FetchedBytes(*place)
    is_local = store.local_path(join_key(folder, "x")) is not None
    if is_local and not _is_packed(dataset):
        return LocalBytes(*place)
    root, meter = cache_folder(section), Meter()
    store = open_store(store.url, observer=lambda operation: meter.add(retries=operation.retries))
    origin = Origin(store, folder, dataset.store, dataset.folder)
    return NodeCache(origin, Folder(root), make_budget(section.size, root), meter=meter)


def check_room(parts: Sequence[tuple[OpenShards[Any], Route]], section: CacheSection) -> None:
    """RecipeError, with the figure needed, when the node's folder is too small for all parts together.

    `Route.pattern` is here what all processes of the node read. Nothing is fetched.
    """
    cached = [(shards, route) for shards, route in parts if isinstance(shards.source, NodeCache)]
    if not cached:
        return
    least = sum(least_bytes(shards.entries, r.order, r.slot, r.pattern) for shards, r in cached)
    check_budget(make_budget(section.size, cache_folder(section))(), least, section.size)


def start_planner(
    shards: OpenShards[Any],
    route: Route,
    section: CacheSection,
    *,
    stop: int | None = None,
    progress: Progress = lambda done, total: None,
) -> Planner | None:
    """Fetch ahead for one reader, which must call `advance` as it reads and `close` in the end.

    None where the shards do not go through the node's cache. `stop`: slot at which the run ends. With
    `staging: full` this returns when all is here; RecipeError, with the figure, when it would not fit.
    """
    cache = shards.source
    if not isinstance(cache, NodeCache):
        return None
    planner = Planner(cache, shards.entries, route)
    if section.staging == "full":
        needed = choose_staged(shards.entries, route, stop)
        check_fits(needed, cache.budget())
        planner.start(0)
        try:
            stage(cache, needed, section.downloads, progress)
        except BaseException:
            planner.close()
            raise
    planner.start(section.downloads)
    return planner


def cache_folder(section: CacheSection, variables: Mapping[str, str] = os.environ) -> Path:
    """The folder of shards that all processes and runs of a node share."""
    root = section.folder or variables.get("TORCHRELAY_CACHE") or "~/.cache/torchrelay"
    return Path(os.path.abspath(os.path.expanduser(root)), "shards")


def _is_packed(dataset: Dataset) -> bool:
    return any(entry.unpack for entries in dataset.manifest.splits.values() for entry in entries)
