"""Tables in files: Parquet, and folders that Hugging Face `datasets` wrote with `save_to_disk`."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchrelay.core.errors import DataError
from torchrelay.data.build.files import Stamp, find_files, hash_parts, open_file
from torchrelay.data.build.sample_arrow import (
    Features,
    class_names,
    describe_schema,
    import_pyarrow,
    read_features,
    rows,
    schema_difference,
)
from torchrelay.data.build.sample_input import UNIT_BYTES, BadSample, RawSample, import_package
from torchrelay.data.build.saved_folder import saved_files
from torchrelay.data.manifest import TRAIN

_BATCH_ROWS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class TableUnit:
    """Row groups (Parquet) or record batches (Arrow) [start, stop) of a file; see `SampleUnit`."""

    file: Stamp
    is_parquet: bool
    start: int
    stop: int
    first_row: int
    """From 1."""
    rows: int
    schema: tuple[tuple[str, str], ...]
    """Name and type of the columns of the first file, which all others must have too."""
    split: str | None
    size: int

    @property
    def id(self) -> str:
        """See `SampleUnit.id`."""
        return hash_parts("rows", self.file, self.is_parquet, self.start, self.stop, self.schema, self.split)

    @property
    def where(self) -> str:
        """See `SampleUnit.where`."""
        return f"{self.file.path}: rows {self.first_row} to {self.first_row + self.rows - 1}"

    def prepared(self) -> "TableUnit":
        """See `SampleUnit.prepared`."""
        return self

    def samples(self) -> Iterator[RawSample | BadSample]:
        """See `SampleUnit.samples`; a file of another schema is one bad sample."""
        with _open_table(self.file, is_parquet=self.is_parquet) as table:
            other = schema_difference(describe_schema(_schema(table)), dict(self.schema))
            if other:
                yield BadSample(self.where, f"another schema than that of the first file: {other}")
                return
            yield from self._rows(self._batches(table), read_features(_schema(table)))

    def preview(self) -> Iterator[RawSample | BadSample]:
        """See `SampleUnit.preview`."""
        return self.samples()

    def _batches(self, table: Any) -> Iterable[Any]:
        if self.is_parquet:
            groups = list(range(self.start, self.stop))
            batches: Iterable[Any] = table.iter_batches(batch_size=_BATCH_ROWS, row_groups=groups)
            return batches
        return (batch for number, batch in enumerate(table) if self.start <= number < self.stop)

    def _rows(self, batches: Iterable[Any], features: Features) -> Iterator[RawSample | BadSample]:
        number = self.first_row
        damage = import_pyarrow("reading tables").ArrowException
        try:
            for batch in batches:
                for values in rows(batch, features):
                    where = f"{self.file.path}: row {number}"
                    yield RawSample(values, where, where)
                    number += 1
        except (damage, OSError) as error:
            why = f"this row and the rest of its part cannot be read: {error}"
            yield BadSample(f"{self.file.path}: row {number}", why, "fetch or write the file again")


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetFiles:
    """Every row is a sample; see `SampleInput`."""

    patterns: Sequence[str]
    split: str | None = None

    @property
    def default_label(self) -> str | None:
        """See `SampleInput.default_label`."""
        return next(iter(self._classes()), None)

    def units(self) -> Sequence[TableUnit]:
        """See `SampleInput.units`; sorted by path, then by row."""
        files = find_files(self.patterns)
        return _divide([(self.split, file) for file in files], is_parquet=True)

    def label_names(self) -> tuple[str, ...] | None:
        """See `SampleInput.label_names`; of the first column with classes that `datasets` noted."""
        return next(iter(self._classes().values()), None)

    def describe(self) -> dict[str, Any]:
        """See `SampleInput.describe`."""
        return {"table": list(self.patterns)}

    def _classes(self) -> dict[str, tuple[str, ...]]:
        with _open_table(find_files(self.patterns)[0], is_parquet=True) as table:
            return class_names(read_features(_schema(table)))


@dataclass(frozen=True, slots=True)
class SavedDataset:
    """A folder of `datasets`: one dataset, or splits in sub-folders; see `SampleInput`."""

    folder: Path

    @property
    def default_label(self) -> str | None:
        """See `SampleInput.default_label`."""
        return next(iter(self._classes()), None)

    def units(self) -> Sequence[TableUnit]:
        """See `SampleInput.units`; splits, then files in their order."""
        files = saved_files(self.folder)
        if {split for split, _ in files} == {TRAIN}:  # nothing is given for the others, so a hash decides
            files = [(None, file) for _, file in files]
        return _divide(files, is_parquet=False)

    def label_names(self) -> tuple[str, ...] | None:
        """See `SampleInput.label_names`; of the first column with classes."""
        return next(iter(self._classes().values()), None)

    def describe(self) -> dict[str, Any]:
        """See `SampleInput.describe`."""
        return {"hf": str(self.folder)}

    def _classes(self) -> dict[str, tuple[str, ...]]:
        with _open_table(saved_files(self.folder)[0][1], is_parquet=False) as table:
            return class_names(read_features(_schema(table)))


def _divide(files: Sequence[tuple[str | None, Stamp]], *, is_parquet: bool) -> list[TableUnit]:
    """Units of neighbouring row groups or record batches, in the order of the files."""
    units: list[TableUnit] = []
    schema: Mapping[str, str] | None = None
    for split, file in files:
        with _open_table(file, is_parquet=is_parquet) as table:
            if schema is None:
                schema = describe_schema(_schema(table))
            sizes = _part_sizes(table, is_parquet=is_parquet)
        for first, last in _group(sizes):
            units.append(
                TableUnit(
                    file=file,
                    is_parquet=is_parquet,
                    start=first,
                    stop=last,
                    first_row=1 + sum(count for count, _ in sizes[:first]),
                    rows=sum(count for count, _ in sizes[first:last]),
                    schema=tuple(schema.items()),
                    split=split,
                    size=sum(size for _, size in sizes[first:last]),
                )
            )
    return units


def _part_sizes(table: Any, *, is_parquet: bool) -> list[tuple[int, int]]:
    """Rows and bytes of every row group or record batch."""
    if not is_parquet:
        return [(batch.num_rows, batch.nbytes) for batch in table]
    groups = [table.metadata.row_group(number) for number in range(table.metadata.num_row_groups)]
    return [(group.num_rows, group.total_byte_size) for group in groups]


def _group(sizes: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Neighbours [first, last) that are together about as large as a unit."""
    first = total = 0
    for number, (_, size) in enumerate(sizes, start=1):
        total += size
        if total >= UNIT_BYTES or number == len(sizes):
            yield first, number
            first, total = number, 0


def _schema(table: Any) -> Any:
    return table.schema_arrow if hasattr(table, "schema_arrow") else table.schema


def _open_table(file: Stamp, *, is_parquet: bool) -> Any:
    """A `ParquetFile` or a stream of record batches, to be closed; DataError when it cannot be read."""
    open_file(file).close()  # unchanged since the build began
    arrow = import_pyarrow("reading tables")
    try:
        if is_parquet:
            return import_package("pyarrow.parquet", "reading Parquet").ParquetFile(file.path)
        return import_package("pyarrow.ipc", "reading Arrow files").open_stream(arrow.memory_map(file.path))
    except (arrow.ArrowException, OSError) as error:
        raise DataError(f"cannot read {file.path}: {error}", hint="fetch or write the file again") from error
