"""Lets go of shards that are open but idle when another process of the node needs their room.

A process that reads in a known order lets go by itself, at the right time. Others (workers that
decode, validation between two measurements) cannot know; they look now and then whether room was
missing somewhere.
"""

import threading
import time
import weakref
from collections.abc import Collection
from typing import Protocol

PERIOD_S = 0.25


class Gauge(Protocol):
    """Tells when room was last missing."""

    def pressure(self) -> float:
        """Unix time."""


class Holder(Protocol):
    """Keeps shards open."""

    is_planned: bool

    @property
    def ledger(self) -> Gauge:
        """Of the folder that they lie in."""

    def release(self, hashes: Collection[str] | None) -> None:
        """Let go of these, or of all."""


def watch_pressure(holder: Holder) -> None:
    """Watch in a thread of its own that ends with `holder`."""
    thread = threading.Thread(target=_watch, args=(weakref.ref(holder),), name="cache-pressure", daemon=True)
    thread.start()


def _watch(reference: "weakref.ref[Holder]") -> None:
    seen = time.time()
    while (holder := reference()) is not None:
        newest = holder.ledger.pressure()
        if newest > seen and not holder.is_planned:
            holder.release(None)
        seen = max(seen, newest)
        del holder
        time.sleep(PERIOD_S)
