"""How far a build is: a bar on a terminal, a plain line now and then elsewhere."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from torchrelay.core.units import format_bytes, format_count, format_seconds

if TYPE_CHECKING:
    from torchrelay.data.build.merge import Status

QUIET_S = 10.0
"""Least time between two plain lines; a build that is done before prints none."""


@contextmanager
def build_progress(unit: str) -> "Iterator[Callable[[Status], None]]":
    """Shows what it is called with, on stderr; `unit` is what the items of the build are."""
    console = Console(stderr=True, markup=False, highlight=False)
    if not console.is_terminal:
        yield PlainLines(unit, time.monotonic, lambda line: typer.echo(line, err=True)).show
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        DownloadColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[details]}"),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=None, details="")
        details = Details(unit, time.monotonic)

        def show(status: "Status") -> None:
            if status.is_resumed:
                progress.console.print(tell_resumed(status))
                return
            progress.update(
                task,
                description=status.phase,
                completed=status.done,
                total=status.total,
                details=details.tell(status),
            )

        yield show


def tell_resumed(status: "Status") -> str:
    """What an earlier process of the build left."""
    about = ""
    if status.total and 0 < status.done < status.total:
        about = f" of about {max(status.shards, round(status.shards * status.total / status.done)):,}"
    count, verb = f"{status.shards:,}{about}", "is" if status.shards == 1 and not about else "are"
    return f"going on: {count} {'shard' if verb == 'is' else 'shards'} {verb} there"


class Details:
    """Documents, items a second and shards, in words."""

    def __init__(self, unit: str, clock: Callable[[], float]) -> None:
        self._unit = unit
        self._clock = clock
        self._first: tuple[float, int] | None = None
        """When the first items were told, and how many: a build that goes on did not make them now."""

    def tell(self, status: "Status") -> str:
        """What stands beside the bar; empty while nothing is made yet."""
        if not status.documents:
            return ""
        now = self._clock()
        if self._first is None:
            self._first = (now, status.items)
        begun, before = self._first
        speed = (status.items - before) / (now - begun) if now > begun else 0.0
        rate = format_bytes(speed) if self._unit == "bytes" else f"{format_count(speed)} {self._unit}"
        documents = f"{format_count(status.documents)} document{'s'[: status.documents != 1]}"
        return f"{documents}, {rate}/s, {status.shards:,} shard{'s'[: status.shards != 1]}"


class PlainLines:
    """A line at most every QUIET_S seconds."""

    def __init__(self, unit: str, clock: Callable[[], float], write: Callable[[str], None]) -> None:
        self._details = Details(unit, clock)
        self._clock = clock
        self._write = write
        self._begun = self._last = clock()

    def show(self, status: "Status") -> None:
        """Write a line, if the last one is long enough ago."""
        if status.is_resumed:
            self._write(tell_resumed(status))
            return
        details = self._details.tell(status)
        now = self._clock()
        if now - self._last < QUIET_S:
            return
        self._last = now
        of = "" if status.total is None else f" of {format_bytes(status.total)}"
        after = format_seconds(now - self._begun)
        parts = [f"{status.phase} {format_bytes(status.done)}{of} after {after}", details]
        self._write(", ".join(part for part in parts if part))
