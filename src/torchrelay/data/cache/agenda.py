"""What one reader will need, and what of it is not here: the planner's view of the future. Pure."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np

from torchrelay.data.cache.folder import shard_key
from torchrelay.data.cache.victim import Keys, Uses
from torchrelay.data.manifest import ShardEntry
from torchrelay.data.order.order import Ints, Order
from torchrelay.data.order.outlook import SlotPattern, first_needs, outlook, pattern_slots

HORIZON_EPOCHS = 1.5
"""How far ahead a plan looks; it is made anew when half an epoch of it has passed."""
NEAR_SLOTS = 1024
"""Slots at the start whose shards come first, in exactly the order of their need."""
_MOST_WANTED = 4096


class Route(NamedTuple):
    """What one process reads of a split."""

    order: Order
    pattern: SlotPattern | None
    """None: any slot from `slot` on may be read by this process."""
    slot: int
    """First slot that it reads."""


class Wanted(NamedTuple):
    """A shard that is needed and not here."""

    number: int
    """In stored order."""
    first: int
    """First slot of the use that it is wanted for."""


class _Ends:
    """The uses in the order in which they end, and how many have been told to have ended."""

    def __init__(self, shards: Ints, last: Ints) -> None:
        self.shards = shards
        self.last = last
        self.passed = 0


class Agenda:
    """The coming uses of shards along a route.

    One thread may call `pop_ended` while another calls the rest.
    """

    def __init__(self, entries: Sequence[ShardEntry], route: Route) -> None:
        keys = np.array([shard_key(entry.sha256) for entry in entries], dtype=np.uint64)
        self._keys: Keys = keys
        self._distinct, self._places = np.unique(keys, return_inverse=True)
        self._route = route
        near = pattern_slots(route.pattern, route.slot, NEAR_SLOTS)
        self._near_end = int(near[-1]) + 1
        self._near_first: Ints = np.full(keys.size, -1, dtype=np.int64)
        for shard, slot in first_needs(route.order, near).items():
            self._near_first[shard] = slot
        line = route.order.line(route.slot // route.order.num_samples)
        window = line.window_shards * route.order.num_samples // len(line.shards)
        self.reach = window * max(1, line.lanes)
        """Slots that a window lasts: so far ahead it pays to give up something that is needed later.

        Further ahead only free room is filled: what is given up early is fetched again more often.
        """
        self.renew(route.slot)

    def renew(self, slot: int) -> None:
        """Look ahead from `slot`."""
        order = self._route.order
        horizon = int(HORIZON_EPOCHS * order.num_samples)
        uses = outlook(order, slot, self._route.pattern, horizon)
        by_last = np.argsort(uses.last, kind="stable")
        self._uses = uses
        self._ends = _Ends(uses.shards[by_last], uses.last[by_last])
        self.renew_at = slot + horizon - order.num_samples
        """Slot from which on the plan looks less than an epoch ahead."""

    def pop_ended(self, slot: int) -> tuple[list[int], int | None]:
        """Shards whose uses ended before `slot` since the last call, and when the next use ends.

        None where the plan does not reach so far: then more may have ended.
        """
        ends = self._ends
        ended = int(np.searchsorted(ends.last, slot))
        shards = ends.shards[ends.passed : ended].tolist()
        ends.passed = max(ended, ends.passed)
        return shards, int(ends.last[ended]) if ended < ends.last.size else None

    def missing(self, slot: int, present: Keys) -> list[Wanted]:
        """What is needed from `slot` on and not among `present`, the next first; not all when it is much."""
        is_here = np.zeros(self._distinct.size, dtype=np.bool_)
        found = np.minimum(np.searchsorted(self._distinct, present), self._distinct.size - 1)
        is_here[found[self._distinct[found] == present]] = True
        uses = self._uses
        open_uses = np.flatnonzero((uses.last >= slot) & ~is_here[self._places[uses.shards]])
        _, once = np.unique(self._places[uses.shards[open_uses]], return_index=True)
        chosen = open_uses[once]
        by_need = np.argsort(self._need(slot, chosen), kind="stable")[:_MOST_WANTED]
        chosen = chosen[by_need]
        return list(map(Wanted, uses.shards[chosen].tolist(), uses.first[chosen].tolist()))

    def uses(self, now: int, slots_per_s: float) -> Uses:
        """The plan as it is published."""
        keys = self._keys[self._uses.shards]
        order = np.lexsort((self._uses.first, keys))
        return Uses(keys[order], self._uses.first[order], self._uses.last[order], now, slots_per_s)

    def _need(self, slot: int, chosen: Ints) -> Ints:
        """When each use is needed: exactly near the start, else the beginning of its window."""
        first = self._uses.first[chosen]
        if slot >= self._near_end:
            return first
        near = self._near_first[self._uses.shards[chosen]]
        needs: Ints = np.where(near >= slot, near, np.maximum(first, self._near_end))
        return needs


def hashes_of(entries: Sequence[ShardEntry], numbers: Collection[int]) -> set[str]:
    """The sha256 of some shards."""
    return {entries[number].sha256 for number in numbers}
