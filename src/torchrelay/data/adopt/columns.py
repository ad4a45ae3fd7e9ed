"""The columns of a dataset, from those of its shards. Pure."""

from collections.abc import Iterable

from torchrelay.data.manifest import Column

_FILES = ("bytes", "jpeg", "png")


def check_names(names: Iterable[str], wanted: Iterable[str]) -> None:
    """ValueError that names what is missing or too much; the order does not matter."""
    have, need = set(names), set(wanted)
    missing, extra = sorted(need - have), sorted(have - need)
    if missing:
        raise ValueError(f"it has no {', '.join(map(repr, missing))}")
    if extra:
        raise ValueError(f"it has {', '.join(map(repr, extra))}, which others do not have")


def merge_columns(first: tuple[Column, ...], second: tuple[Column, ...]) -> tuple[Column, ...]:
    """Columns that both shards keep; ValueError that names the one which differs."""
    check_names((column.name for column in second), (column.name for column in first))
    by_name = {column.name: column for column in second}
    return tuple(merge_column(column, by_name[column.name]) for column in first)


def merge_column(first: Column, second: Column) -> Column:
    """What is true of both; ValueError when they are of different types."""
    dtype = first.dtype
    if first.dtype != second.dtype:
        if first.dtype not in _FILES or second.dtype not in _FILES:
            raise ValueError(f"{first.name!r} is {second.dtype}, in others {first.dtype}")
        dtype = "bytes"  # pictures of several kinds
    return Column(name=first.name, dtype=dtype, shape=first.shape if first.shape == second.shape else None)
