"""What is found out by reading all samples once: the columns, what they hold, and the classes.

Surveys of parts of the input are merged in the order of the input; the result does not depend on how
it was divided. Memory is bounded: of the samples only what differs is kept.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from torchrelay.core.errors import DataError
from torchrelay.data.build.sample_image import image_kind
from torchrelay.data.build.sample_input import Cell, ImageBytes, RawSample
from torchrelay.data.formats.mds_encoding import NUMBER_TYPES

NUMBER = "number"
"""Kind of numbers and arrays."""
MOST_CLASSES = 1_000_000
_MOST_LAYOUTS = 64

_NATIVE = {np.dtype(np.bool_): "uint8"} | {np.dtype(name): name for name in sorted(NUMBER_TYPES)}
_NAMES = _NATIVE | {kind.newbyteorder(): name for kind, name in _NATIVE.items()}
"""What a type of numpy is stored as."""
_WHOLE = re.compile(r"-?(0|[1-9][0-9]{0,17})")
_DIGITS = r"(0|[1-9][0-9]*)"
_FLOAT = re.compile(
    rf"[-+]?(({_DIGITS}\.[0-9]*|\.[0-9]+)(e[-+]?[0-9]+)?|{_DIGITS}e[-+]?[0-9]+|nan|inf)", re.IGNORECASE
)
"""Not what looks like a code, such as 007, or a whole number too large for int64."""


class Described(NamedTuple):
    """What one value is."""

    kind: str
    """`number`, `str`, `bytes`, `json`, `image:jpeg|png|other`, `cell:int64|float64|str|empty` or `none`."""
    dtype: str = ""
    """Of a number or array; empty where any fits."""
    shape: tuple[int, ...] | None = None
    """Of a number or array."""
    is_list: bool = False
    """Whether it is a Python list that could be an array."""


_TEXT = Described("str")
_CELLS = {kind: Described(f"cell:{kind}") for kind in ("int64", "float64", "str", "empty")}


@dataclass(slots=True)
class Seen:
    """What the values of one column and kind have in common."""

    count: int
    where: str
    """The first of them."""
    dtype: str
    """The narrowest that holds all; empty where any does; `object` where none does."""
    shape: tuple[int, ...] | None
    """Of the first."""
    odd: tuple[str, tuple[int, ...] | None] | None = None
    """Where the first of another shape is, and that shape."""
    is_list: bool = False
    """Whether all are Python lists."""
    first: str = ""
    """Of fields of a text table: the first of them."""


@dataclass(slots=True)
class Survey:
    """What was seen of some samples. Can be pickled."""

    label: str | None
    """Column of which the classes are collected."""
    samples: int = 0
    layouts: dict[tuple[str, ...], tuple[int, str]] = field(default_factory=dict)
    """Names of columns that occur together: how often, and where first."""
    columns: dict[str, dict[str, Seen]] = field(default_factory=dict)
    """By column and kind."""
    classes: dict[int | str, str] = field(default_factory=dict)
    """Every class, and where it is first."""

    def add(self, sample: RawSample) -> None:
        """One more sample; DataError when a value is of a kind that no dataset holds."""
        self.samples += 1
        layout = tuple(sorted(sample.values))
        count, where = self.layouts.get(layout, (0, sample.where))
        if count or len(self.layouts) < _MOST_LAYOUTS:
            self.layouts[layout] = (count + 1, where)
        for name, value in sample.values.items():
            if name == self.label:
                self._add_class(value, sample.where)
            kind, dtype, shape, is_list = describe_value(value, name, sample.where)
            kinds = self.columns.setdefault(name, {})
            seen = kinds.get(kind)
            if seen is not None and (seen.dtype, seen.shape, seen.is_list) == (dtype, shape, is_list):
                seen.count += 1
            else:
                _join(kinds, kind, Seen(1, sample.where, dtype, shape, None, is_list, _cell(value)))

    def merge(self, later: "Survey") -> None:
        """Take in what was seen of samples that come after these."""
        self.samples += later.samples
        for layout, (count, where) in later.layouts.items():
            known, first = self.layouts.get(layout, (0, where))
            self.layouts[layout] = (known + count, first)
        for name, kinds in later.columns.items():
            for kind, seen in kinds.items():
                _join(self.columns.setdefault(name, {}), kind, seen)
        for label, where in later.classes.items():
            self._add_class(label, where)

    def _add_class(self, value: Any, where: str) -> None:
        label = class_of(value, self.label or "", where)
        self.classes.setdefault(label, where)
        if len(self.classes) > MOST_CLASSES:
            raise DataError(
                f"the column {self.label!r} has more than {MOST_CLASSES:,} classes",
                hint="is it a class? numbers that are predicted as such are an ordinary column",
            )


def class_of(value: Any, column: str, where: str) -> int | str:
    """The class that a label value names; DataError when it is neither a whole number nor a text."""
    if isinstance(value, Cell) and _WHOLE.fullmatch(value):
        return int(value)
    if isinstance(value, str) and value:
        return str(value)
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return int(value)
    if isinstance(value, np.ndarray) and value.shape == () and value.dtype.kind in "iu":
        return int(value)
    raise DataError(f"{where}: the label {column!r} is {value!r}, not a whole number or text")


def describe_value(value: Any, column: str, where: str) -> Described:
    """What a value is; DataError when no dataset holds such values."""
    if isinstance(value, str):
        return _CELLS[_cell_type(value)] if isinstance(value, Cell) else _TEXT
    if isinstance(value, bytes | bytearray | memoryview):
        return Described(f"image:{image_kind(value)}" if isinstance(value, ImageBytes) else "bytes")
    if value is None:
        return Described("none")
    if isinstance(value, Mapping):
        return Described("json")
    described = _describe_number(value)
    if described is None:
        raise DataError(
            f"{where}: the column {column!r} holds {type(value).__name__}, which is not stored",
            hint="give numbers, numpy arrays, texts, bytes, lists or dicts",
        )
    return described


def _describe_number(value: Any) -> Described | None:
    if isinstance(value, np.ndarray | np.generic):
        name = _NAMES.get(value.dtype)
        return None if name is None else Described(NUMBER, name, value.shape)
    is_list = isinstance(value, list | tuple)
    if is_list and len(value) == 0:
        return Described(NUMBER, "", (0,), is_list)
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, OverflowError):  # lists of different lengths
        return Described("json") if is_list else None
    dtype = _NAMES.get(array.dtype)
    if dtype is not None:
        return Described(NUMBER, dtype, array.shape, is_list)
    return Described("json") if is_list else None


def _cell(value: Any) -> str:
    return str(value) if isinstance(value, Cell) else ""


def _cell_type(text: str) -> str:
    if _WHOLE.fullmatch(text):
        return "int64"
    if _FLOAT.fullmatch(text):
        return "float64"
    return "str" if text else "empty"


def _join(kinds: dict[str, Seen], kind: str, later: Seen) -> None:
    first = kinds.get(kind)
    if first is None:
        kinds[kind] = replace(later)
        return
    first.count += later.count
    first.is_list = first.is_list and later.is_list
    if later.dtype != first.dtype:
        first.dtype = _promote(first.dtype, later.dtype)
    if first.odd is None:
        first.odd = (later.where, later.shape) if later.shape != first.shape else later.odd


def _promote(first: str, second: str) -> str:
    if not first or not second:
        return first or second
    if "object" in (first, second):
        return "object"
    both = np.promote_types(first, second)
    whole = np.dtype(first).kind in "iu" and np.dtype(second).kind in "iu"
    return "object" if whole and both.kind == "f" else both.name
