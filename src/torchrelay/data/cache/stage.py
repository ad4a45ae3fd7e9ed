"""`data.cache.staging: full`: every shard that will be read is on the node's disk before the first step."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from torchrelay.core.errors import RecipeError
from torchrelay.core.units import format_bytes
from torchrelay.data.cache.agenda import Route
from torchrelay.data.cache.node_cache import NodeCache
from torchrelay.data.cache.room import room_for
from torchrelay.data.manifest import ShardEntry
from torchrelay.data.order.outlook import outlook

Progress = Callable[[int, int], None]
"""Told bytes that are here, and bytes in all, as they come."""
_MOST_EPOCHS = 3
"""Beyond that every shard is taken to be read on this node."""


def choose_staged(entries: Sequence[ShardEntry], route: Route, stop: int | None) -> list[ShardEntry]:
    """The distinct shards that are read from the route's slot up to `stop`; None: without end."""
    horizon = _MOST_EPOCHS * route.order.num_samples + 1 if stop is None else stop - route.slot
    if horizon > _MOST_EPOCHS * route.order.num_samples:
        chosen = [entry for entry in entries if entry.samples or entry.tokens]
    else:
        uses = outlook(route.order, route.slot, route.pattern, horizon)
        chosen = [entries[number] for number in uses.shards.tolist()]
    return list({entry.sha256: entry for entry in chosen}.values())


def check_fits(entries: Sequence[ShardEntry], budget: int) -> None:
    """RecipeError, with the figure needed, unless the folder can hold all of these at once."""
    extra = max((room_for(entry) - entry.disk_bytes for entry in entries), default=0)
    needed = sum(entry.disk_bytes for entry in entries) + extra
    if needed > budget:
        raise RecipeError(
            f"data.cache.staging: full needs {format_bytes(needed)} ({needed:,} bytes) for "
            f"{len(entries):,} shards; the cache may hold {format_bytes(budget)}",
            hint=f"set data.cache.size to at least {needed} on a disk that has it, or use staging: stream",
        )


def stage(cache: NodeCache, entries: Sequence[ShardEntry], downloads: int, progress: Progress) -> None:
    """Fetch all shards that are not here yet; returns when the last one is, whoever fetched it.

    RecipeError when the disk refuses them; DataError and StoreError as they come.
    """
    total, done = sum(entry.bytes for entry in entries), 0
    with ThreadPoolExecutor(max_workers=downloads, thread_name_prefix="stage") as pool:
        futures = [pool.submit(cache.bring_or_wait, entry) for entry in entries]
        try:
            for entry, future in zip(entries, futures, strict=True):
                future.result()
                done += entry.bytes
                progress(done, total)
        except OSError as error:
            raise RecipeError(
                f"data.cache.staging: full cannot fill the cache: {error}",
                hint="choose another data.cache.folder, or use staging: stream",
            ) from error
        finally:
            for future in futures:
                future.cancel()
