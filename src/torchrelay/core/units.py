"""Sizes, durations and counts as people write them: "64MiB", "10min", "500 steps".

Pure parsing and printing; no clock is read here.
"""

import math
import re
from typing import Literal, NamedTuple

_SIZE_UNITS = {
    "": 1, "b": 1,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
_SECONDS = {
    "ms": 0.001,
    "s": 1.0, "sec": 1.0, "second": 1.0, "seconds": 1.0,
    "min": 60.0, "m": 60.0, "minute": 60.0, "minutes": 60.0,
    "h": 3600.0, "hour": 3600.0, "hours": 3600.0,
    "d": 86400.0, "day": 86400.0, "days": 86400.0,
}  # fmt: skip
_LARGEST = 1e24
_NUMBER = re.compile(r"\s*([0-9][0-9_]*(?:\.[0-9]+)?(?:e[-+]?[0-9]+)?)\s*([A-Za-z%]*)\s*", re.IGNORECASE)


class Every(NamedTuple):
    """How often: a count of steps, or seconds of wall time."""

    amount: float
    unit: Literal["steps", "seconds"]

    def __str__(self) -> str:
        return f"{int(self.amount)} steps" if self.unit == "steps" else write_seconds(self.amount)


def _split(text: object, what: str, example: str) -> tuple[float, str]:
    """The number, finite and not negative, and the unit in lower case."""
    if isinstance(text, bool) or not isinstance(text, int | float | str):
        raise ValueError(f"{what} cannot be {text!r}; write it like {example}")
    unit = ""
    if isinstance(text, str):
        match = _NUMBER.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is not {what}; write it like {example}")
        text, unit = match.group(1).replace("_", ""), match.group(2).lower()
    try:
        amount = float(text)
    except OverflowError:
        amount = math.inf
    if not 0 <= amount <= _LARGEST:
        raise ValueError(f"{what} cannot be {amount}; write it like {example}")
    return amount, unit


def parse_bytes(text: str | int) -> int:
    """Bytes of a size such as "64MiB" (2**20) or "64MB" (10**6); a bare number is bytes."""
    amount, unit = _split(text, "a size", '"64MiB"')
    if unit not in _SIZE_UNITS:
        raise ValueError(f'{text!r} has the unknown unit {unit!r}; write a size like "64MiB"')
    return int(amount * _SIZE_UNITS[unit])


def parse_seconds(text: str | int | float) -> float:
    """Seconds of a duration such as "30s", "10min", "2h"; a bare number is seconds."""
    amount, unit = _split(text, "a duration", '"10min"')
    if unit and unit not in _SECONDS:
        raise ValueError(f'{text!r} has the unknown unit {unit!r}; write a duration like "10min"')
    return amount * _SECONDS.get(unit, 1.0)


def parse_every(text: str | int | float) -> Every:
    """Steps ("500 steps", or a bare number) or a duration ("10min"); must be positive."""
    amount, unit = _split(text, "an interval", '"500 steps" or "10min"')
    if unit in ("", "step", "steps"):
        if amount != int(amount):
            raise ValueError(f'{text!r} is not a whole number of steps; write "500 steps" or "10min"')
        every = Every(amount, "steps")
    elif unit in _SECONDS:
        every = Every(amount * _SECONDS[unit], "seconds")
    else:
        raise ValueError(f'{text!r} has the unknown unit {unit!r}; write "500 steps" or "10min"')
    if every.amount <= 0:
        raise ValueError(f'{text!r} is not positive; write "500 steps" or "10min"')
    return every


def parse_fraction(text: str | float) -> float:
    """A share as "10%" or 0.1, between 0 and 1."""
    amount, unit = _split(text, "a share", '"10%" or 0.1')
    share = amount / 100 if unit == "%" else amount
    if unit not in ("", "%") or not 0 <= share <= 1:
        raise ValueError(f'{text!r} is not a share between 0 and 1; write "10%" or 0.1')
    return share


def write_seconds(seconds: float) -> str:
    """A duration as `parse_seconds` reads it back exactly: "600s"."""
    return f"{seconds!r}s".replace(".0s", "s")


def format_bytes(count: float) -> str:
    """Bytes with a binary unit, three digits: "1.50 GiB"."""
    return f"{count:.0f} B" if count < 1024 else _scaled(count, 1024, ("KiB", "MiB", "GiB", "TiB"))


def format_count(count: float) -> str:
    """A count with a decimal unit, three digits: "1.24 M"."""
    return f"{count:.0f}" if count < 999.5 else _scaled(count, 1000, ("k", "M", "G", "T"))


def _scaled(count: float, base: int, units: tuple[str, ...]) -> str:
    place = 0
    count /= base
    while count >= base - 0.5 and place + 1 < len(units):
        place += 1
        count /= base
    decimals = 2 if count < 9.995 else 1 if count < 99.95 else 0
    return f"{count:.{decimals}f} {units[place]}"


def format_seconds(seconds: float) -> str:
    """A duration for people: "3.2 s", "4 min 05 s", "2 h 03 min"."""
    if seconds < 59.5:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes:02d} min"
    return f"{hours // 24} d {hours % 24:02d} h"
