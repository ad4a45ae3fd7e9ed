"""Fetches what a process will read next, before it is read, and tells the node what it will need.

The order is known exactly, so nothing is guessed: shards are fetched in the order of their first
use, as far ahead as the budget allows without giving up anything that is needed sooner. A reader
that needs a shard that is not here yet fetches it itself, at once, beside these threads.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

from torchrelay.core.errors import RelayError
from torchrelay.data.cache.agenda import Agenda, Route, Wanted, hashes_of
from torchrelay.data.cache.ledger import now_due
from torchrelay.data.cache.node_cache import NodeCache
from torchrelay.data.cache.pace import Pace
from torchrelay.data.manifest import ShardEntry

LOOK_AGAIN_S = 5.0
"""How often it is checked whether something is missing again because others removed it."""
NO_ROOM_S = 0.5
"""How soon after there was no room it is tried again, unless something is released before."""
_LEAST_PAUSE_S = 0.05
_SHARE = 10
"""A look for what is missing is followed by a pause at least so many times as long."""
_FIRST_BACKOFF_S = 1.0
_MOST_BACKOFF_S = 30.0
_CLOSE_S = 5.0

Outcome = Literal["done", "no room", "failed"]


class Planner:
    """Threads that fetch ahead of one reader; made by `choose.start_planner`.

    `advance` belongs to the reader, `close` to anybody.
    """

    def __init__(self, cache: NodeCache, entries: Sequence[ShardEntry], route: Route) -> None:
        self._cache = cache
        self._entries = entries
        self._agenda = Agenda(entries, route)
        self._pace = Pace(route.slot)
        self._next_end = -1
        self._threads: list[threading.Thread] = []
        self._changed = threading.Condition()
        """Guards all below."""
        self._is_closed = self._is_looking = self._is_blocked = False
        self._queue: deque[Wanted] = deque()
        self._flying: set[int] = set()
        self._backoffs: dict[int, tuple[float, float]] = {}
        """Shard that failed → when it may be tried again, and how long that pause is."""
        self._look_at_s = self._looked_s = 0.0
        self._pause_s = _LEAST_PAUSE_S

    def start(self, downloads: int) -> None:
        """Publish the plan and begin to fetch, so many shards at a time."""
        self._cache.is_planned = True
        self._cache.urgent = self._urgent
        self._publish()
        for number in range(downloads):
            thread = threading.Thread(target=self._work, name=f"shard-fetch-{number}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def advance(self, slot: int) -> None:
        """The reader goes on with `slot`: nothing before it is read again. Cheap where no use ends."""
        if slot > self._next_end:
            self._let_go(slot)
        self._pace.slot = slot

    def close(self) -> None:
        """Stop fetching and take the plan back; waits a few seconds for fetches to notice."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        deadline = time.monotonic() + _CLOSE_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._pace.close()
        self._cache.is_planned = False
        self._cache.urgent = now_due

    def _let_go(self, slot: int) -> None:
        """Release what was read for the last time before `slot`, so that it may be evicted."""
        ended, next_end = self._agenda.pop_ended(slot)
        self._next_end = slot if next_end is None else next_end
        self._pace.slot = slot  # not before: a plan made meanwhile must not forget what has ended
        if ended or next_end is None:
            self._cache.release(None if next_end is None else hashes_of(self._entries, ended))
        self._pace.tell()
        with self._changed:
            if slot >= self._agenda.renew_at:
                self._look_at_s = 0.0
            elif self._is_blocked:
                self._look_soon()
            self._changed.notify_all()

    def _work(self) -> None:
        while (job := self._next_job()) is not None:
            job()

    def _next_job(self) -> Callable[[], None] | None:
        """What to do now; waits until there is something, None when closed."""
        with self._changed:
            while not self._is_closed:
                now = time.monotonic()
                if now >= self._look_at_s and not self._is_looking:
                    self._is_looking = True
                    return self._look
                if self._queue:
                    wanted = self._queue.popleft()
                    self._flying.add(wanted.number)
                    return partial(self._fetch, wanted)
                self._changed.wait(LOOK_AGAIN_S if self._is_looking else max(0.0, self._look_at_s - now))
            return None

    def _look(self) -> None:
        """Find out what is missing; make the plan anew when it has become too short."""
        began = time.monotonic()
        wanted: list[Wanted] = []
        try:
            if not self._pace.is_published() or self._pace.slot >= self._agenda.renew_at:
                self._publish()
            present = self._cache.ledger.look().files.keys
            wanted = self._agenda.missing(self._pace.slot, present)
        except OSError:  # the folder cannot be used at present; readers go past it
            pass
        with self._changed:
            now = self._looked_s = time.monotonic()
            self._pause_s = max(_LEAST_PAUSE_S, _SHARE * (now - began))
            self._look_at_s = now + LOOK_AGAIN_S
            self._is_looking = self._is_blocked = False
            self._queue = deque(one for one in wanted if self._may_try(one.number, now))
            self._changed.notify_all()

    def _may_try(self, number: int, now: float) -> bool:
        return number not in self._flying and self._backoffs.get(number, (0.0, 0.0))[0] <= now

    def _publish(self) -> None:
        if self._pace.slot >= self._agenda.renew_at:
            self._agenda.renew(self._pace.slot)
            self._next_end = -1
        self._pace.publish(self._cache.ledger, self._agenda.uses(*self._pace.tell()))

    def _urgent(self) -> float:
        self._pace.tell()
        return now_due()

    def _fetch(self, wanted: Wanted) -> None:
        outcome: Outcome = "done"  # by us, or it is being done elsewhere
        due = partial(self._pace.seconds_to, wanted.first, self._agenda.reach)
        try:
            self._cache.bring(self._entries[wanted.number], due, lambda: self._is_closed)
        except OSError:
            outcome = "no room"
        except RelayError:  # the reader meets it too, and tells it, if it lasts
            outcome = "failed"
            self._cache.meter.add(retries=1)
        with self._changed:
            self._flying.discard(wanted.number)
            self._note(wanted.number, outcome)
            self._changed.notify_all()

    def _note(self, number: int, outcome: Outcome) -> None:
        now = time.monotonic()
        pause = min(_MOST_BACKOFF_S, 2 * self._backoffs.pop(number, (0.0, _FIRST_BACKOFF_S / 2))[1])
        if outcome == "failed":
            self._backoffs[number] = (now + pause, pause)
        if outcome == "no room":
            self._queue.clear()
            self._is_blocked = True
            self._look_at_s = min(self._look_at_s, now + NO_ROOM_S)
        elif not self._queue and not self._flying:  # there may be more to fetch by now
            self._look_soon()

    def _look_soon(self) -> None:
        self._look_at_s = min(self._look_at_s, self._looked_s + self._pause_s)
