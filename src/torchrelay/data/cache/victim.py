"""Which shards a node gives up when it needs room: those that are needed last. Pure.

Every process that reads in a known order says what it still needs and when. Shards that nobody
needs go first, the longest unused before the others; then those whose next use lies farthest
ahead. As the future is known, no other rule fetches less often.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Keys = NDArray[np.uint64]


class Shelved(NamedTuple):
    """The shards on disk; all [files]."""

    keys: Keys
    """Which shard: the first 64 bits of its sha256."""
    sizes: Ints
    """Bytes."""
    used_s: Floats
    """Unix time of the last use that is known."""
    in_use: NDArray[np.bool_]
    """Whether a process reads it now."""


class Uses(NamedTuple):
    """What one process still needs, by its own slots; arrays [uses], sorted by key, then by `first`."""

    keys: Keys
    first: Ints
    last: Ints
    now: int
    """Slot that it reads at present."""
    slots_per_s: float
    """How fast it reads, > 0; makes the plans of several processes comparable."""


class Choice(NamedTuple):
    """What is given up."""

    victims: Ints
    """Places in `Shelved`, in the order in which they go; empty when they would not suffice."""
    missing: int
    """Bytes that cannot be freed; 0 when the victims suffice."""


def choose_victims(files: Shelved, plans: Sequence[Uses], needed_bytes: int, *, due_s: float = 0.0) -> Choice:
    """Files to remove so that at least `needed_bytes` become free.

    What is in use stays, and so does everything that somebody needs within `due_s`, the time until
    that for which the room is wanted is needed itself; so nothing is given up for what comes later.
    Minus infinity is for what a reader waits for: then all may go that nobody reads this moment.
    """
    next_s = seconds_to_next_use(files.keys, plans)
    able = np.flatnonzero(~files.in_use & (next_s > due_s))
    order = able[np.lexsort((files.used_s[able], -next_s[able]))]
    freed = np.cumsum(files.sizes[order])
    if needed_bytes <= 0:
        return Choice(order[:0], 0)
    total = int(freed[-1]) if freed.size else 0
    if total < needed_bytes:
        return Choice(order[:0], needed_bytes - total)
    return Choice(order[: int(np.searchsorted(freed, needed_bytes)) + 1], 0)


def seconds_to_next_use(keys: Keys, plans: Sequence[Uses]) -> Floats:
    """Time until any of the plans needs each key, infinity for never; [keys].

    What is needed already counts as the less the longer it will be: minus the time until its use ends.
    """
    nearest = np.full(keys.size, np.inf)
    for plan in plans:
        coming = np.flatnonzero(plan.last >= plan.now)
        if coming.size == 0:
            continue
        wanted = plan.keys[coming]
        is_nearest = np.append(True, wanted[1:] != wanted[:-1])
        wanted = wanted[is_nearest]
        coming = coming[is_nearest]
        slots = np.maximum(plan.first[coming] - plan.now, 0)
        ahead = np.where(slots > 0, slots, plan.now - plan.last[coming]) / plan.slots_per_s
        found = np.minimum(np.searchsorted(wanted, keys), wanted.size - 1)
        nearest = np.minimum(nearest, np.where(wanted[found] == keys, ahead[found], np.inf))
    return nearest
