"""Arrays in numpy's files: rows of `npy`, rows of the arrays of `npz`, or one sample for each `npz`."""

import math
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchrelay.core.errors import DataError
from torchrelay.data.build.files import Stamp, find_files, hash_parts, open_file
from torchrelay.data.build.sample_input import UNIT_BYTES, BadSample, RawSample

DATA = "data"
_UNREADABLE = (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error)


@dataclass(frozen=True, slots=True)
class RowUnit:
    """Rows [start, stop) of an `npy` file; see `SampleUnit`."""

    file: Stamp
    start: int
    stop: int
    split: str | None
    size: int

    @property
    def id(self) -> str:
        """See `SampleUnit.id`."""
        return hash_parts("npy", self.file, self.start, self.stop, self.split)

    @property
    def where(self) -> str:
        """See `SampleUnit.where`."""
        return f"{self.file.path}: rows {self.start + 1} to {self.stop}"

    def prepared(self) -> "RowUnit":
        """See `SampleUnit.prepared`."""
        return self

    def samples(self) -> Iterator[RawSample | BadSample]:
        """See `SampleUnit.samples`."""
        rows = open_npy(self.file)
        for number in range(self.start, self.stop):
            where = f"{self.file.path}: row {number + 1}"
            yield RawSample({DATA: np.array(rows[number])}, where, where)

    def preview(self) -> Iterator[RawSample | BadSample]:
        """See `SampleUnit.preview`."""
        return self.samples()


@dataclass(frozen=True, slots=True, kw_only=True)
class NpyFiles:
    """Every row of the arrays in `npy` files is a sample with the column `data`; see `SampleInput`."""

    patterns: Sequence[str]
    split: str | None = None

    @property
    def default_label(self) -> str | None:
        """See `SampleInput.default_label`."""
        return None

    def units(self) -> Sequence[RowUnit]:
        """See `SampleInput.units`; sorted by path."""
        return [unit for file in find_files(self.patterns) for unit in self._divide(file)]

    def label_names(self) -> None:
        """See `SampleInput.label_names`; numbers have no names."""

    def describe(self) -> dict[str, Any]:
        """See `SampleInput.describe`."""
        return {"npy": list(self.patterns)}

    def _divide(self, file: Stamp) -> Iterator[RowUnit]:
        rows = open_npy(file)
        if rows.ndim == 0:
            raise DataError(f"{file.path} holds a single number, no rows")
        row_bytes = max(1, rows.itemsize * math.prod(rows.shape[1:]))
        step = max(1, UNIT_BYTES // row_bytes)
        for start in range(0, len(rows), step):
            stop = min(start + step, len(rows))
            yield RowUnit(file, start, stop, self.split, (stop - start) * row_bytes)


@dataclass(frozen=True, slots=True)
class NpzUnit:
    """One `npz` file; see `SampleUnit`."""

    file: Stamp
    rows: bool
    """Whether every row is a sample, not the file."""
    split: str | None

    @property
    def id(self) -> str:
        """See `SampleUnit.id`."""
        return hash_parts("npz", self.file, self.rows, self.split)

    @property
    def where(self) -> str:
        """See `SampleUnit.where`."""
        return self.file.path

    @property
    def size(self) -> int:
        """See `SampleUnit.size`."""
        return self.file.size

    def prepared(self) -> "NpzUnit":
        """See `SampleUnit.prepared`."""
        return self

    def samples(self) -> Iterator[RawSample | BadSample]:
        """See `SampleUnit.samples`; holds the arrays of the file in memory."""
        where = self.file.path
        try:
            with open_file(self.file) as file, np.load(file, allow_pickle=False) as archive:
                arrays = {name: archive[name] for name in archive.files}
        except _UNREADABLE as error:
            yield BadSample(where, f"cannot be read: {error}")
            return
        if not self.rows:
            yield RawSample(arrays, where, where)
            return
        lengths = {name: len(array) if array.ndim else 0 for name, array in arrays.items()}
        if len(set(lengths.values())) != 1 or 0 in lengths.values():
            shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
            hint = "all arrays need as many rows; where each file is one sample, use --whole"
            yield BadSample(where, f"its arrays have no rows in common: {shapes or 'none'}", hint)
            return
        yield from self._rows(arrays, next(iter(lengths.values())))

    def preview(self) -> Iterator[RawSample | BadSample]:
        """See `SampleUnit.preview`."""
        return self.samples()

    def _rows(self, arrays: dict[str, NDArray[Any]], length: int) -> Iterator[RawSample]:
        for number in range(length):
            where = f"{self.file.path}: row {number + 1}"
            yield RawSample({name: array[number] for name, array in arrays.items()}, where, where)


@dataclass(frozen=True, slots=True, kw_only=True)
class NpzFiles:
    """Columns are the arrays of `npz` files by their names; see `SampleInput`."""

    patterns: Sequence[str]
    rows: bool = True
    """True: all arrays of a file have as many rows, each is a sample. False: each file is a sample."""
    split: str | None = None

    @property
    def default_label(self) -> str | None:
        """See `SampleInput.default_label`."""
        return None

    def units(self) -> Sequence[NpzUnit]:
        """See `SampleInput.units`; sorted by path."""
        return [NpzUnit(file, self.rows, self.split) for file in find_files(self.patterns)]

    def label_names(self) -> None:
        """See `SampleInput.label_names`; numbers have no names."""

    def describe(self) -> dict[str, Any]:
        """See `SampleInput.describe`."""
        return {"npz": list(self.patterns), **({} if self.rows else {"whole": True})}


def open_npy(file: Stamp) -> NDArray[Any]:
    """The array in a file, mapped, not read; DataError when it is none, or one of Python objects."""
    open_file(file).close()  # unchanged since the build began
    try:
        array: NDArray[Any] = np.load(file.path, mmap_mode="r", allow_pickle=False)
    except _UNREADABLE as error:
        raise DataError(f"cannot read {file.path}: {error}") from error
    if not isinstance(array, np.ndarray):
        raise DataError(f"{file.path} holds several arrays", hint="read it as npz")
    return array
