import importlib
import io
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchrelay.data.formats.arrow import open_arrow
from torchrelay.data.manifest import Column

pa = importlib.import_module("pyarrow")


def encode(batches: list[Any]) -> memoryview:
    out = io.BytesIO()
    with pa.ipc.new_file(out, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return memoryview(out.getvalue())


@settings(max_examples=30, deadline=None)
@given(
    rows=st.lists(
        st.tuples(st.integers(-5, 5), st.text(max_size=5), st.lists(st.integers(0, 9), max_size=4))
    ),
    cuts=st.lists(st.integers(0, 30), max_size=4),
)
def test_rows_are_read_from_batches_and_slices_of_any_size(
    rows: list[tuple[int, str, list[int]]], cuts: list[int]
) -> None:
    schema = pa.schema(
        [("a", pa.int64()), ("b", pa.string()), ("c", pa.list_(pa.int32())), ("d", pa.bool_())]
    )
    table = pa.table(
        {
            "a": [a for a, _, _ in rows],
            "b": [b for _, b, _ in rows],
            "c": [c for _, _, c in rows],
            "d": [a > 0 for a, _, _ in rows],
        },
        schema=schema,
    ).combine_chunks()
    borders = [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
    parts = [table.slice(start, stop - start) for start, stop in zip(borders, borders[1:], strict=False)]
    batches = [batch for part in parts for batch in part.to_batches()] or [
        pa.RecordBatch.from_pylist([], schema)
    ]
    columns = tuple(Column(name=name, dtype="-") for name in "abcd")
    shard = open_arrow(encode(batches), columns)
    assert len(shard) == len(rows)
    for index, (a, b, c) in enumerate(rows):
        found = shard.sample(index)
        assert (found["a"], found["b"], found["d"]) == (a, b, a > 0)
        assert type(found["a"]) is int and type(found["d"]) is bool
        assert found["c"].tolist() == c and found["c"].dtype == np.int32 and not found["c"].flags.writeable


def test_arrays_lie_in_the_bytes_of_the_shard() -> None:
    kind = pa.list_(pa.list_(pa.float32(), 3), 2)
    values = np.arange(24, dtype=np.float32).reshape(4, 2, 3)
    data = encode([pa.record_batch([pa.array(values.tolist(), kind)], names=["m"])])
    shard = open_arrow(data, (Column(name="m", dtype="float32", shape=(2, 3)),))
    for index in range(4):
        found = shard.sample(index)["m"]
        assert np.array_equal(found, values[index])
        assert np.shares_memory(found, np.frombuffer(data, np.uint8))


def test_other_columns_than_in_the_manifest_are_refused() -> None:
    data = encode([pa.record_batch([pa.array([1])], names=["a"])])
    with pytest.raises(ValueError, match=r"it has the columns \['a'\], the manifest says \['b'\]"):
        open_arrow(data, (Column(name="b", dtype="int64", shape=()),))


@pytest.mark.parametrize("size", [0, 5, 50, -1])
def test_bytes_that_are_no_arrow_file_are_refused(size: int) -> None:
    data = encode([pa.record_batch([pa.array([1])], names=["a"])])
    with pytest.raises(ValueError, match="it is not an Arrow file"):
        open_arrow(data[:size], (Column(name="a", dtype="int64", shape=()),))
