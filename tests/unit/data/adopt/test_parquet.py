import importlib
import io
from typing import Any

import pytest

from tests.unit.data.adopt.conftest import Place
from torchrelay.core.errors import DataError

pa = importlib.import_module("pyarrow")
parquet = importlib.import_module("pyarrow.parquet")


def encode(columns: dict[str, Any], **options: object) -> bytes:
    out = io.BytesIO()
    parquet.write_table(pa.table(columns), out, **options)
    return out.getvalue()


GOOD = {"a": pa.array([1, 2, 3]), "b": ["x", "y", "z"]}


def refuse(local: Place, message: str, *tables: dict[str, Any]) -> None:
    for number, table in enumerate(tables):
        local.data.put(f"{number}.parquet", encode(table))
    with pytest.raises(DataError, match=message):
        local.adopt()
    assert local.nothing_published()


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (
            {"a": pa.array([1.5]), "b": ["x"]},
            "1.parquet: it has another schema: 'a' is double, in 0.parquet int64",
        ),
        ({"a": pa.array([1])}, "'b' is not there, in 0.parquet string"),
        ({**GOOD, "c": GOOD["b"]}, "'c' is string, in 0.parquet not there"),
        ({"b": GOOD["b"], "a": GOOD["a"]}, "its columns are in another order than in 0.parquet"),
    ],
)
def test_another_schema_in_the_middle_is_named_with_file_and_column(
    local: Place, other: dict[str, Any], message: str
) -> None:
    refuse(local, message, GOOD, other, GOOD)


def test_an_empty_value_is_named_with_its_row(local: Place) -> None:
    rows = {"a": pa.array([1] * 100 + [None] + [2] * 10)}
    for row_group in (1000, 7):
        local.data.put("0.parquet", encode(rows, row_group_size=row_group))
        with pytest.raises(DataError, match=r"0.parquet: 'a' of row 101 is empty \(null\)"):
            local.adopt()


@pytest.mark.parametrize(
    "column",
    [
        pa.array([[1], [2, None]], pa.list_(pa.int64())),
        pa.array([[[1, 2]], [[3, None]]], pa.list_(pa.list_(pa.int64(), 2), 1)),
        pa.array([[[1, 2]], [None]], pa.list_(pa.list_(pa.int64(), 2), 1)),
    ],
)
def test_an_empty_place_in_an_array_is_named_with_its_row(local: Place, column: Any) -> None:
    refuse(local, r"0.parquet: 'c' of row 2 has an empty place \(null\)", {"c": column})


def test_a_picture_that_is_missing_is_named_with_its_row(local: Place) -> None:
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    refuse(local, "'c' of row 2 is empty", {"c": pa.array([{"bytes": b"1"}, None], kind)})
    refuse(local, "'c' of row 1 is empty", {"c": pa.array([{"path": "x"}], kind)})


@pytest.mark.parametrize(
    "column",
    [
        pa.array([None, None], pa.null()),
        pa.array([1, 2], pa.decimal128(5)),
        pa.array([[("a", 1)], []], pa.map_(pa.string(), pa.decimal128(5))),
        pa.array([[b"x"], [b"y"]], pa.list_(pa.binary())),
    ],
)
def test_a_column_that_cannot_be_read_is_named(local: Place, column: Any) -> None:
    refuse(local, "0.parquet: column 'c' is of type .*, which is not read", {"c": column})


@pytest.mark.parametrize("size", [0, 7, 100, -1])
def test_a_file_that_is_cut_off_is_named(place: Place, size: int) -> None:
    data = encode(GOOD)
    place.data.put("0.parquet", data[:size])
    with pytest.raises(DataError, match="0.parquet is cut off at byte"):
        place.adopt()
    place.data.put("0.parquet", data)
    place.data.put("1.parquet", data[:size])
    with pytest.raises(DataError, match="1.parquet: it is damaged"):
        place.adopt()
    assert place.nothing_published()


def test_damaged_pages_are_found_when_they_are_adopted(local: Place) -> None:
    data = bytearray(encode({"a": pa.array(range(5000))}, write_page_checksum=False, compression="snappy"))
    for place in range(40, 400):
        data[place] ^= 0xFF
    local.data.put("0.parquet", bytes(data))
    with pytest.raises(DataError, match="0.parquet: it is damaged"):
        local.adopt()


def test_pictures_of_one_kind_are_told_by_how_they_begin(local: Place) -> None:
    png, jpeg = b"\x89PNG....", b"\xff\xd8\xff..."
    local.data.put(
        "0.parquet", encode({"p": [png, png], "j": [jpeg, jpeg], "m": [png, jpeg], "o": [b"", png]})
    )
    dtypes = {column.name: column.dtype for column in local.adopt().manifest.content.columns}
    assert dtypes == {"p": "png", "j": "jpeg", "m": "bytes", "o": "bytes"}
    local.data.put("1.parquet", encode({"p": [jpeg], "j": [jpeg], "m": [png], "o": [png]}))
    dtypes = {column.name: column.dtype for column in local.adopt().manifest.content.columns}
    assert dtypes == {"p": "bytes", "j": "jpeg", "m": "bytes", "o": "bytes"}


def test_a_file_without_rows_is_left_out(local: Place) -> None:
    local.data.put("0.parquet", encode(GOOD))
    local.data.put("1.parquet", encode({"a": pa.array([], pa.int64()), "b": pa.array([], pa.string())}))
    assert [entry.key for entry in local.adopt().manifest.splits["train"]] == ["0.parquet"]
    local.data.delete("0.parquet")
    with pytest.raises(DataError, match="there is no sample in"):
        local.adopt()


def test_the_hint_for_text_is_to_build(local: Place) -> None:
    local.data.put("0.parquet", encode(GOOD))
    with pytest.raises(DataError) as caught:
        local.adopt(tokenizer=None, vocabulary=9)
    assert "torchrelay data build" in caught.value.hint


def test_row_groups_of_any_size_give_the_same_rows(local: Place) -> None:
    rows = {"a": pa.array(range(1000)), "b": [f"row {number}" * (number % 5) for number in range(1000)]}
    for row_group in (1, 64, 333, 1000):
        local.data.put("0.parquet", encode(rows, row_group_size=row_group))
        local.adopt()
        assert [sample["a"] for sample in local.samples()] == list(range(1000))
        assert [sample["b"] for sample in local.samples()] == rows["b"]
