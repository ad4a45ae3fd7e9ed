"""The rows of an Arrow file, read in place; such a file is made of a Parquet file when it arrives.

Numbers, texts and lists of numbers are cut out of the mapped buffers; nothing is copied for arrays.
"""

from bisect import bisect_right
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchrelay.data.formats.arrow_file import plain_batch
from torchrelay.data.formats.arrow_schema import keep_columns, number_name
from torchrelay.data.formats.sample import Sample, Value
from torchrelay.data.formats.unpack import import_extra
from torchrelay.data.manifest import Column

Getter = Callable[[int], Value]
"""The value of one column in a row of a batch."""


def read_batches(data: memoryview) -> list[Any]:
    """The `pyarrow.RecordBatch`es of an Arrow file in `data`, in place; ValueError when it is damaged."""
    pa = import_extra("pyarrow", "reading Arrow data")
    try:
        reader = pa.ipc.open_file(pa.py_buffer(data))
        kept = keep_columns(reader.schema)
        return [plain_batch(reader.get_batch(number), kept) for number in range(reader.num_record_batches)]
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"it is not an Arrow file: {error}") from error


def open_arrow(data: memoryview, columns: tuple[Column, ...]) -> "ArrowRows":
    """The rows of an Arrow file in `data`; ValueError when it is damaged or has other columns."""
    rows = ArrowRows(read_batches(data))
    names = [column.name for column in columns]
    if len(rows) and rows.names != names:
        raise ValueError(f"it has the columns {rows.names}, the manifest says {names}")
    return rows


class ArrowRows:
    """See `SampleShard`."""

    def __init__(self, batches: list[Any]) -> None:
        """Made by `open_arrow`; batches as `read_batches` gives them."""
        self._batches = batches
        self.names: list[str] = batches[0].schema.names if batches else []
        self._ends = list(accumulate(batch.num_rows for batch in batches))
        self._getters: list[list[tuple[str, Getter]] | None] = [None] * len(batches)

    def __len__(self) -> int:
        """See `SampleShard`."""
        return self._ends[-1] if self._ends else 0

    def sample(self, index: int) -> Sample:
        """See `SampleShard.sample`."""
        number = bisect_right(self._ends, index)
        getters = self._getters[number]
        if getters is None:  # two threads may both make them, with the same result
            getters = self._getters[number] = [
                (item.column.name, make_getter(array, item.column))
                for array, item in zip(
                    self._batches[number].columns, keep_columns(self._batches[number].schema), strict=True
                )
            ]
        row = index - (self._ends[number - 1] if number else 0)
        return {name: get(row) for name, get in getters}


def make_getter(array: Any, column: Column) -> Getter:
    """What reads one row of a `pyarrow` array that holds the values of `column`, none of them null."""
    kind = str(array.type)
    if number_name(array.type) is not None:
        numbers = array.to_numpy(zero_copy_only=kind != "bool")
        return lambda row: numbers[row].item()
    if kind in ("string", "binary"):
        return _text_getter(array, "str" if kind == "string" else "bytes")
    if column.dtype == "json":
        return lambda row: array[row].as_py()
    if array.type.num_fields == 1 and hasattr(array, "offsets"):
        return _list_getter(array)
    return _fixed_getter(array, column.shape or ())


def _text_getter(array: Any, dtype: str) -> Getter:
    ends, buffer = _offsets(array.buffers()[1], array), array.buffers()[2]
    view = memoryview(b"" if buffer is None else buffer)
    if dtype == "bytes":
        return lambda row: bytes(view[ends[row] : ends[row + 1]])
    return lambda row: str(view[ends[row] : ends[row + 1]], "utf-8")


def _list_getter(array: Any) -> Getter:
    ends = _offsets(array.buffers()[1], array)
    numbers = array.values.to_numpy()
    return lambda row: numbers[ends[row] : ends[row + 1]]


def _fixed_getter(array: Any, shape: tuple[int, ...]) -> Getter:
    values = array.flatten()
    while number_name(values.type) is None:
        values = values.flatten()
    rows = values.to_numpy().reshape(len(array), *shape)
    return lambda row: rows[row]


def _offsets(buffer: Any, array: Any) -> NDArray[np.int32]:
    """Where the values of the rows begin, and the last ends, in the buffer of values."""
    return np.frombuffer(buffer, np.int32, len(array) + 1, 4 * array.offset)
