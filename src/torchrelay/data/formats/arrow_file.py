"""A Parquet file as an uncompressed Arrow IPC file, whose rows are read in place from a map of it."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from torchrelay.core.errors import DataError
from torchrelay.data.formats.arrow_schema import KeptColumn, keep_columns
from torchrelay.data.formats.unpack import import_extra

_BATCH_BYTES = 4 * 2**20
_FEWEST_ROWS = 64
_MOST_ROWS = 2**16


def transcode(source: Path, target: Path) -> None:
    """Write a Parquet file as an Arrow file; DataError when it is damaged, OSError on a full disk."""
    pa = import_extra("pyarrow", "reading Parquet")
    try:
        with target.open("wb") as file, pa.PythonFile(file, "w") as sink:
            for _ in copy_batches(sink, source):
                pass
    except (pa.ArrowException, ValueError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # of the disk; what is damaged has no number
        raise DataError(f"cannot unpack {source}: {error}") from error


def copy_batches(sink: Any, source: Path) -> Iterator[Any]:
    """Write the rows of a Parquet file to a `pyarrow` stream as an Arrow file, and give each batch.

    At most one row group is in memory. ValueError or `pyarrow.ArrowException` when it is damaged.
    """
    pa = import_extra("pyarrow", "reading Parquet")
    parquet = import_extra("pyarrow.parquet", "reading Parquet")
    with parquet.ParquetFile(source, pre_buffer=False) as file:
        kept = keep_columns(file.schema_arrow)
        schema = pa.schema([(item.column.name, item.type) for item in kept])
        with pa.ipc.new_file(sink, schema) as writer:
            for batch in file.iter_batches(_batch_rows(file.metadata), use_threads=False):
                plain = plain_batch(batch, kept)
                writer.write_batch(plain)
                yield plain


def _batch_rows(metadata: Any) -> int:
    """Rows of a batch, so that it has about `_BATCH_BYTES`."""
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    row_bytes = sum(group.total_byte_size for group in groups) / max(1, metadata.num_rows)
    return int(min(_MOST_ROWS, max(_FEWEST_ROWS, _BATCH_BYTES // max(1.0, row_bytes))))


def plain_batch(batch: Any, kept: Sequence[KeptColumn]) -> Any:
    """A `pyarrow.RecordBatch` with its values in the types that they are kept in."""
    pa = import_extra("pyarrow", "reading Parquet")
    columns = [_plain(pa, array, item.type) for array, item in zip(batch.columns, kept, strict=True)]
    return pa.record_batch(columns, names=[item.column.name for item in kept])


def _plain(pa: Any, array: Any, kind: Any) -> Any:
    """The values of a column in the type that they are kept in."""
    if array.type == kind:
        return array
    if isinstance(array, pa.ExtensionArray):
        return _plain(pa, array.storage, kind)
    if pa.types.is_struct(array.type):  # a picture beside its path
        places = [field.name for field in array.type]
        return array.flatten()[places.index("bytes")]
    if pa.types.is_dictionary(array.type):
        return _plain(pa, array.dictionary_decode(), kind)
    return array.cast(kind)
