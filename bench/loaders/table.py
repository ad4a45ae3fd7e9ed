"""Numbers of several runs as a table of at most 100 columns."""

import statistics
from collections.abc import Sequence

WIDTH = 100


def middle(values: Sequence[float]) -> float:
    """The median; nan for none."""
    return statistics.median(values) if values else float("nan")


def spread(values: Sequence[float]) -> str:
    """How far the runs lie apart, in percent of their median."""
    if len(values) < 2 or not middle(values):
        return ""
    return f"±{(max(values) - min(values)) / 2 / middle(values) * 100:.0f}%"


def short(value: float) -> str:
    """Three digits and a unit, such as 118k or 0.042; a dash for nan."""
    if value != value:
        return "-"
    if value >= 10_000:
        return f"{value / 1000:.0f}k"
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.3g}"


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A heading, the names of the columns, and the rows; the first column is ranged left."""
    widths = [max(len(cell) for cell in column) for column in zip(columns, *rows, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(width) if number == 0 else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (columns, *rows)
    ]
    return "\n".join(["", title, *(line[:WIDTH] for line in lines)])
