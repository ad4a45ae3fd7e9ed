"""Checks the rows of Arrow data, batch by batch, and finds out what their columns hold."""

from typing import Any

from torchrelay.data.formats.arrow_schema import keep_columns
from torchrelay.data.formats.sample import is_array
from torchrelay.data.formats.unpack import import_extra
from torchrelay.data.manifest import Column

PICTURE_BYTES = 3
_PICTURES = {b"\xff\xd8\xff": "jpeg", b"\x89PN": "png"}


def picture_dtype(head: bytes) -> str:
    """The dtype of a file by its first `PICTURE_BYTES` bytes; "bytes" for what is no picture."""
    return _PICTURES.get(head, "bytes")


class RowScan:
    """Takes in all batches of a file, in the types that `arrow_schema` keeps."""

    def __init__(self) -> None:
        self.count = 0
        """Rows seen."""
        self._columns: list[Column] = []
        self._kinds: dict[str, set[str]] = {}
        """What the values of a column of bytes are."""

    def feed(self, batch: Any) -> None:
        """Check a `pyarrow.RecordBatch`; ValueError that names the row which lacks a value."""
        if not self._columns:
            self._columns = [item.column for item in keep_columns(batch.schema)]
        for column, array in zip(self._columns, batch.columns, strict=True):
            _check_values(column, array, self.count)
            if column.dtype == "bytes":
                self._kinds.setdefault(column.name, set()).update(_find_kinds(array))
        self.count += batch.num_rows

    def columns(self) -> tuple[Column, ...]:
        """What is true of all rows: bytes that are all pictures of one kind are called that."""
        return tuple(self._sharpen(column) for column in self._columns)

    def _sharpen(self, column: Column) -> Column:
        kinds = self._kinds.get(column.name, set())
        return Column(name=column.name, dtype=next(iter(kinds))) if len(kinds) == 1 else column


def _check_values(column: Column, array: Any, first: int) -> None:
    """ValueError that names the first row without a value, or with an empty place in its array. Rows count
    from 1, as where a dataset is built.
    """
    if array.null_count:
        row = first + array.is_null().index(True).as_py() + 1
        raise ValueError(f"{column.name!r} of row {row:,} is empty (null)")
    if not is_array(column.dtype) or column.shape == ():
        return
    inner = array
    while inner.type.num_fields:
        inner = inner.flatten()
        if inner.null_count:
            row = next(row for row, value in enumerate(array, start=1) if _has_null(value.as_py()))
            raise ValueError(f"{column.name!r} of row {first + row:,} has an empty place (null)")


def _has_null(value: Any) -> bool:
    return value is None or (isinstance(value, list) and any(map(_has_null, value)))


def _find_kinds(array: Any) -> set[str]:
    compute = import_extra("pyarrow.compute", "reading Arrow data")
    heads = compute.unique(compute.binary_slice(array, 0, PICTURE_BYTES)).to_pylist()
    return set(map(picture_dtype, heads))
