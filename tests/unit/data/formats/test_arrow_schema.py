import importlib

import pytest

from torchrelay.data.formats.arrow_schema import keep_columns
from torchrelay.data.manifest import Column

pa = importlib.import_module("pyarrow")

LIST = pa.list_


@pytest.mark.parametrize(
    ("kind", "dtype", "shape", "kept"),
    [
        ("int8", "int8", (), "int8"),
        ("float16", "float16", (), "halffloat"),
        ("float64", "float64", (), "double"),
        ("bool", "bool", (), "bool"),
        ("string", "str", None, "string"),
        ("large_string", "str", None, "string"),
        ("binary", "bytes", None, "binary"),
        ("large_binary", "bytes", None, "binary"),
        (pa.binary(16), "bytes", None, "binary"),
        (pa.dictionary(pa.int8(), pa.string()), "str", None, "string"),
        (pa.date32(), "int32", (), "int32"),
        (pa.timestamp("us", "UTC"), "int64", (), "int64"),
        (pa.duration("s"), "int64", (), "int64"),
        (pa.struct([("bytes", pa.binary()), ("path", pa.string())]), "bytes", None, "binary"),
        (LIST(pa.float32()), "float32", None, None),
        (pa.large_list(pa.int16()), "int16", None, None),
        (LIST(pa.float32(), 4), "float32", (4,), None),
        (LIST(LIST(pa.int64(), 3), 2), "int64", (2, 3), None),
        (pa.fixed_shape_tensor(pa.int32(), (2, 3)), "int32", (6,), None),
        (LIST(pa.bool_()), "json", None, None),
        (LIST(LIST(pa.int64())), "json", None, None),
        (pa.struct([("a", pa.int64()), ("b", LIST(pa.string()))]), "json", None, None),
    ],
)
def test_every_type_becomes_a_column(
    kind: object, dtype: str, shape: tuple[int, ...] | None, kept: str | None
) -> None:
    (found,) = keep_columns(pa.schema([("x", kind)]))
    assert found.column == Column(name="x", dtype=dtype, shape=shape)
    assert kept is None or str(found.type) == kept


def test_names_that_come_twice_are_refused() -> None:
    with pytest.raises(ValueError, match="two of its columns have the same name"):
        keep_columns(pa.schema([("x", pa.int8()), ("x", pa.int8())]))
