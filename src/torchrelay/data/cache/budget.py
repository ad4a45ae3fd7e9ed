"""How many bytes of shards the node's folder may hold, and whether they suffice."""

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from torchrelay.core.errors import RecipeError
from torchrelay.core.units import format_bytes
from torchrelay.data.cache.ledger import free_bytes
from torchrelay.data.cache.room import room_for
from torchrelay.data.manifest import ShardEntry
from torchrelay.data.order.order import Order
from torchrelay.data.order.outlook import SlotPattern, outlook

AUTO_SHARE = 0.75
"""Part of what is free, or the folder's already, that it may fill when nothing else is said."""

Size = int | Literal["auto"]


def make_budget(size: Size, root: Path) -> Callable[[], int]:
    """Most bytes of the folder; `auto` looks at the disk when it is asked first."""
    if size == "auto":
        return functools.cache(lambda: measure_auto(root))
    return lambda: size


def measure_auto(root: Path) -> int:
    """Three quarters of what the folder could fill of its disk if all else stayed as it is."""
    existing = next(folder for folder in (root, *root.parents) if folder.exists())
    held = sum(path.stat().st_size for path in root.glob("??/*")) if existing == root else 0
    return int(AUTO_SHARE * (free_bytes(existing) + held))


def least_bytes(entries: Sequence[ShardEntry], order: Order, slot: int, pattern: SlotPattern | None) -> int:
    """The smallest folder that holds a window of every lane at any time of an epoch, and one download.

    At most what the whole split needs. `pattern`: what all processes of the node read together.
    """
    sizes = np.array([entry.disk_bytes for entry in entries], dtype=np.int64)
    distinct = {entry.sha256: entry for entry in entries}.values()
    largest = max(distinct, key=room_for)
    whole = sum(entry.disk_bytes for entry in distinct) + room_for(largest) - largest.disk_bytes
    uses = outlook(order, slot, pattern, 2 * order.num_samples)
    begin, end = uses.first, uses.last + 1
    change = np.concatenate([-sizes[uses.shards], sizes[uses.shards]])
    by_time = np.lexsort((change, np.concatenate([end, begin])))
    peak = int(np.cumsum(change[by_time]).max())
    return min(whole, peak + room_for(largest))


def check_budget(budget: int, least: int, size: Size) -> None:
    """RecipeError, with the figure needed, when the folder is too small for the data to pass through."""
    if budget >= least:
        return
    needed = f"{format_bytes(least)} ({least:,} bytes)"
    advice = "or use fewer data.lanes or data.window_shards, which needs less"
    if size == "auto":
        raise RecipeError(
            f"data.cache may fill {format_bytes(budget)} of the disk; the data needs {needed} at a time",
            hint=f"set data.cache.folder to a place on a larger disk, {advice}",
        )
    raise RecipeError(
        f"data.cache.size {format_bytes(size)} is too small: the data needs {needed} at a time",
        hint=f"set data.cache.size to at least {least}, {advice}",
    )
