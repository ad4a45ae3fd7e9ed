"""What reading cost since somebody last asked: counters of the node cache, for the journal."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol, runtime_checkable


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Counters over some time of one process; add two of them for both."""

    hits: int = 0
    """Shards that were on the node's disk when they were opened."""
    misses: int = 0
    """Shards that were not, so that somebody waited."""
    fetches: int = 0
    """Shards that this process fetched; `fetch_seconds / fetches` is what one takes."""
    fetched_bytes: int = 0
    """Bytes that came from the store, those of failed tries too."""
    fetch_seconds: float = 0.0
    """Time spent fetching, checking included; over all threads, so it may exceed the time that passed."""
    retries: int = 0
    """Fetches that failed and are tried again."""
    evictions: int = 0
    """Shards that were removed from the node's disk to make room."""
    refetched: int = 0
    """Shards found damaged, on arrival or on disk, and fetched anew."""
    in_memory: int = 0
    """Shards read past the cache because it had no room for them."""
    waited_seconds: float = 0.0
    """Time that readers stood still for shards."""

    def __add__(self, other: "Figures") -> "Figures":
        return Figures(
            **{field.name: getattr(self, field.name) + getattr(other, field.name) for field in fields(self)}
        )


class Meter:
    """Counts until `take`. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = _zeros()

    def add(self, **counts: float) -> None:
        """Add to the counters of these names."""
        with self._lock:
            for name, count in counts.items():
                self._counts[name] += count

    def take(self) -> Figures:
        """What was counted since the last call."""
        with self._lock:
            counts, self._counts = self._counts, _zeros()
        return Figures(**counts)


def name_counts(counts: Sequence[float]) -> dict[str, float] | None:
    """The values of a Figures, in the order of its fields, by name; zeros are left out, None for none."""
    named = {
        field.name: round(count, 6) for field, count in zip(fields(Figures), counts, strict=False) if count
    }
    return named or None


def _zeros() -> dict[str, Any]:
    return {field.name: field.default for field in fields(Figures)}


@runtime_checkable
class Metered(Protocol):
    """A source of shards that counts what it costs."""

    meter: Meter
