"""The journal: append-only JSON lines, `runs/<id>/journal/attempt-0001.jsonl`.

Where the store is a folder, a record is in the file (in the kernel, not yet on the disk) when
`write` returns, but for step records: those wait up to `BATCH_S` for each other, so a killed
process loses records of steps that a resume repeats anyway. An object store cannot append; there, records
are gathered and written as immutable segments `attempt-0001.000001.jsonl` every few seconds, and
a killed process loses at most the last `SEGMENT_S` seconds of records, never of training.
"""

import json
import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, Protocol

from torchrelay.core.clock import Clock, system_clock
from torchrelay.core.errors import StoreError
from torchrelay.core.record import Record, to_line
from torchrelay.observe.rundir import run_prefix
from torchrelay.store.base import Store

SEGMENT_S = 5.0
"""Seconds between segments in an object store."""
FLUSH_S = 5.0
"""Longest time that training waits for a segment."""
BATCH_S = 0.05
"""Longest time that a step record waits in memory for others to be written with."""
_BATCHED = ("step", "samples")
RECENT_STEPS = 20
"""Step records that a summary of a run looks at."""
_STEP_START = b'{"kind":"step",'
"""How `to_line` begins a step record."""


class Sink(Protocol):
    """Somewhere records go. `write` never raises into the training loop."""

    def write(self, record: Record) -> None:
        """Take one record; it may wait a little for others."""

    def flush(self) -> None:
        """Write what waits. Called before a checkpoint: a resume does not repeat the steps before it."""

    def close(self) -> None:
        """Everything written so far is where it belongs."""


class FileJournal:
    """Appends to one local file, in batches of step records. For one thread.

    A batch is `BATCH_S` of steps at most: written one by one, records would cost a small model
    more than its optimizer. Any other record writes everything before it and itself at once.
    """

    def __init__(self, descriptor: int, clock: Clock) -> None:
        self._descriptor = descriptor
        self._clock = clock
        self._waiting: list[tuple[Record, float]] = []
        self._written_s = 0.0
        self._is_torn = False
        self.lost = 0
        """Records that could not be written (disk full)."""

    def write(self, record: Record) -> None:
        """Append; a full disk costs the record, never the training."""
        now_s = self._clock()
        self._waiting.append((record, now_s))
        if record.kind not in _BATCHED or now_s - self._written_s >= BATCH_S:
            self._written_s = now_s
            self.flush()

    def flush(self) -> None:
        """See `Sink.flush`."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        # A line that a full disk cut short must not swallow the next one.
        content = b"".join([b"\n" * self._is_torn, *(to_line(record, at_s) for record, at_s in waiting)])
        try:
            written = os.write(self._descriptor, content)
        except OSError:
            self.lost += len(waiting)
            return
        self._is_torn = not content[:written].endswith(b"\n")
        self.lost += content.count(b"\n", written)

    def close(self) -> None:
        """Force everything to the disk."""
        self.flush()
        with suppress(OSError):
            os.fsync(self._descriptor)
        os.close(self._descriptor)


class SegmentJournal:
    """Gathers records and writes a segment every `SEGMENT_S` seconds from a thread of its own."""

    def __init__(self, store: Store, stem: str, clock: Clock) -> None:
        self._store = store
        self._stem = stem
        self._clock = clock
        self._lines: list[bytes] = []
        self._segment = 0
        self._lock = threading.Lock()
        self._closing, self._wake, self._written = (threading.Event() for _ in range(3))
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    def write(self, record: Record) -> None:
        """Queue; it is in the store at most `SEGMENT_S` seconds later."""
        line = to_line(record, self._clock())
        with self._lock:
            self._lines.append(line)

    def flush(self) -> None:
        """See `Sink.flush`; waits for the thread at most `FLUSH_S`, for the others wait for this rank."""
        self._written.clear()
        self._wake.set()
        self._written.wait(FLUSH_S)

    def close(self) -> None:
        """Write what is left and end the thread."""
        self._closing.set()
        self._wake.set()
        self._thread.join(timeout=60)

    def _run(self) -> None:
        while not self._closing.is_set():
            self._wake.wait(SEGMENT_S)
            self._wake.clear()
            self._put()
            self._written.set()
        self._put()

    def _put(self) -> None:
        with self._lock:
            lines, self._lines = self._lines, []
        if not lines:
            return
        self._segment += 1
        try:
            self._store.put(f"{self._stem}.{self._segment:06d}.jsonl", b"".join(lines))
        except StoreError:  # the store is away for now: keep the records for the next turn
            self._segment -= 1
            with self._lock:
                self._lines[:0] = lines


def open_journal(
    store: Store, run: str, attempt: int, *, part: str = "", clock: Clock = system_clock
) -> Sink:
    """The journal of one attempt; `part` names a second file beside it (a rank's sample log)."""
    stem = f"{run_prefix(run)}/journal/attempt-{attempt:04d}{part}"
    path = store.local_path(f"{stem}.jsonl")
    if path is None:
        return SegmentJournal(store, stem, clock)
    path.parent.mkdir(parents=True, exist_ok=True)
    return FileJournal(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), clock)


def read_journal(store: Store, run: str) -> Iterator[dict[str, Any]]:
    """Every record of every attempt in the order written; a last line cut short is left out.

    Sample logs of the ranks follow after the attempt's other records.
    """
    for entry in store.list(f"{run_prefix(run)}/journal"):
        if entry.key.endswith(".jsonl"):
            yield from _parse(store.get(entry.key).splitlines())


def read_summary(store: Store, run: str, *, steps: int = RECENT_STEPS) -> Iterator[dict[str, Any]]:
    """As `read_journal`, but of each file's step records only the last `steps`, and no sample log.

    What `status` needs: a journal of a million steps is read and not parsed.
    """
    for entry in store.list(f"{run_prefix(run)}/journal"):
        if entry.key.endswith(".jsonl") and ".samples-" not in entry.key:
            lines = store.get(entry.key).splitlines()
            numbers = [number for number, line in enumerate(lines) if line.startswith(_STEP_START)]
            left_out = set(numbers[:-steps])
            yield from _parse(line for number, line in enumerate(lines) if number not in left_out)


def counting_steps(records: Iterator[dict[str, Any]]) -> list[dict[str, Any]]:
    """The step records that count, by step: a resumed attempt replaces the tail it repeats."""
    steps: dict[int, dict[str, Any]] = {}
    for record in records:
        if record["kind"] == "step":
            steps[record["step"]] = record
    return [steps[step] for step in sorted(steps)]


def _parse(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    for line in lines:
        with suppress(ValueError):
            yield json.loads(line)
