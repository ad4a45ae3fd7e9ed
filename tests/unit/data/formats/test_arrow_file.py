import importlib
from pathlib import Path

import numpy as np
import pytest

from torchrelay.core.errors import DataError
from torchrelay.data.formats.arrow_file import copy_batches
from torchrelay.data.formats.unpack import unpack

pa = importlib.import_module("pyarrow")
parquet = importlib.import_module("pyarrow.parquet")


def test_batches_hold_few_rows_where_rows_are_large_and_many_where_they_are_small(tmp_path: Path) -> None:
    sizes = {}
    for width in (1, 40_000):
        table = pa.table({"a": [bytes(width - 1) + bytes([row % 256]) for row in range(300)]})
        parquet.write_table(table, tmp_path / "a", use_dictionary=False, compression=None)
        batches = list(copy_batches(pa.MockOutputStream(), tmp_path / "a"))
        assert sum(batch.num_rows for batch in batches) == 300
        sizes[width] = max(batch.num_rows for batch in batches)
    assert sizes == {1: 300, 40_000: 104}


def test_the_arrow_file_is_not_compressed_and_keeps_every_row(tmp_path: Path) -> None:
    table = pa.table({"a": list(range(500)), "b": [str(row) for row in range(500)]})
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=99, compression="zstd")
    unpack("arrow", tmp_path / "a.parquet", tmp_path / "a.arrow")
    data = (tmp_path / "a.arrow").read_bytes()
    assert np.arange(99).tobytes() in data and np.arange(99, 198).tobytes() in data
    assert pa.ipc.open_file(pa.py_buffer(data)).read_all().equals(table)


def test_a_file_that_is_no_parquet_is_named(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"PAR1 no PAR1")
    with pytest.raises(DataError, match=f"cannot unpack {tmp_path}/a: "):
        unpack("arrow", tmp_path / "a", tmp_path / "b")


@pytest.mark.parametrize("rows", [1, 100_000])
def test_a_full_disk_stays_an_error_of_the_system(tmp_path: Path, rows: int) -> None:
    parquet.write_table(pa.table({"a": list(range(rows))}), tmp_path / "a")
    with pytest.raises(OSError, match="No space left on device"):
        unpack("arrow", tmp_path / "a", Path("/dev/full"))
