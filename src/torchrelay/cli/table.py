"""Tables, lists of facts and progress bars, the same in every command."""

import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.measure import Measurement
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

WIDTH = 100
"""Columns of a table where the output is no terminal."""

_ANY_WIDTH = 100_000
_INDENT = 11
"""Columns before the values of `print_lines`."""

Report = Callable[[str, int, int], None]
"""Called with what is being done, bytes done, and bytes in all."""


def make_console() -> Console:
    """A console that prints text as it is; wide enough where it is no terminal."""
    console = Console(markup=False, highlight=False)
    return console if console.is_terminal else Console(markup=False, highlight=False, width=WIDTH)


def make_table(first: str, *rest: str) -> Table:
    """A table without lines; all columns but the first are flush right."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(first)
    for name in rest:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def print_table(table: Table) -> None:
    """The table; where the output is no terminal as wide as it needs, so that no cell is cut."""
    console = make_console()
    if not console.is_terminal:
        wide = console.options.update(width=_ANY_WIDTH)
        console.width = max(WIDTH, Measurement.get(console, wide, table).maximum)
    console.print(table)


def wrap(text: str) -> str:
    """A fact for `print_lines`, broken between words where it would be longer than `WIDTH` allows."""
    lines = textwrap.wrap(text, WIDTH - _INDENT, break_long_words=False, break_on_hyphens=False)
    return f"\n{' ' * _INDENT}".join(lines)


def print_lines(console: Console, lines: dict[str, str]) -> None:
    """One fact a line, its name in front."""
    for name, value in lines.items():
        console.print(f"{name:<{_INDENT - 1}} {value}", soft_wrap=True)


@contextmanager
def progress_bar() -> Iterator[Report]:
    """A bar on a terminal, nothing elsewhere."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("")
        yield lambda phase, done, total: progress.update(task, description=phase, completed=done, total=total)
