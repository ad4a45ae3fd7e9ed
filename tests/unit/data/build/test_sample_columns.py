from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tests.unit.data.build.test_sample_survey import survey
from torchrelay.core.errors import DataError
from torchrelay.data.build.sample_columns import SampleOptions, infer_columns
from torchrelay.data.build.sample_input import Cell, ImageBytes
from torchrelay.data.manifest import Column

JPEG, PNG, GIF = (ImageBytes(head) for head in (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF89a"))


def infer(values: Sequence[Any], **options: Any) -> Column:
    (column,) = infer_columns(survey([{"c": value} for value in values]), SampleOptions(**options))
    return column


@pytest.mark.parametrize(("values", "dtype", "shape"), [
    ([np.int8(1), np.int8(2)], "int8", ()), ([np.int8(1), np.int16(2)], "int16", ()),
    ([1, 0.5], "float64", ()),
    ([np.zeros(3, np.float32), np.zeros(3)], "float64", (3,)), ([[], []], "float64", (0,)),
    (["a", ""], "str", None), ([b"a"], "bytes", None), ([{"a": 1}, {"b": 2}], "json", None),
    ([[1, 2], ["a"]], "json", None), ([{}, []], "json", None), ([JPEG, JPEG], "jpeg", None),
    ([PNG, GIF], "png", None), ([GIF], "png", None), ([JPEG, PNG], "bytes", None),
    ([Cell("1"), Cell("2.5")], "float64", ()), ([Cell("1"), Cell("x")], "str", None),
    ([Cell(""), Cell("x")], "str", None), ([Cell("")], "str", None),
])  # fmt: skip
def test_the_narrowest_column_that_holds_all(values: Sequence[Any], dtype: str, shape: Any) -> None:
    assert infer(values) == Column(name="c", dtype=dtype, shape=shape)


def test_columns_are_sorted_by_name_whatever_the_order_of_the_samples() -> None:
    found = infer_columns(survey([{"b": 1, "a": 2}, {"a": 1, "b": 2}]), SampleOptions())
    assert [column.name for column in found] == ["a", "b"]


def test_values_of_two_kinds_are_named_with_both_places() -> None:
    with pytest.raises(DataError, match="'c' has a number or array at row 0 and a text at row 2"):
        infer([1, 2, "x"])
    assert infer(["x", 1, 2], on_bad="skip").dtype == "int64"


def test_a_column_without_any_value_is_named() -> None:
    with pytest.raises(DataError, match="the column 'c' has no value in any sample"):
        infer([None, None])


def test_whole_numbers_that_no_type_holds_are_refused() -> None:
    with pytest.raises(DataError, match="whole numbers that no one type holds") as caught:
        infer([2**63, -1])
    assert "--column-type c=float64" in caught.value.hint
    assert infer([2**63, -1], types={"c": "float64"}).dtype == "float64"


def test_shapes_that_differ_need_a_declaration() -> None:
    with pytest.raises(DataError, match=r"\(2,\) at row 0, \(3,\) at row 1"):
        infer([np.zeros(2), np.zeros(3)])
    assert infer([np.zeros(2), np.zeros(3)], ragged=["c"]) == Column(name="c", dtype="float64")


@pytest.mark.parametrize(("dtype", "shape"), [("float32", (2,)), ("json", None)])
def test_a_declared_type_counts(dtype: str, shape: Any) -> None:
    assert infer([[1, 2], [3, 4]], types={"c": dtype}) == Column(name="c", dtype=dtype, shape=shape)


def test_an_unknown_type_is_named_with_the_nearest() -> None:
    with pytest.raises(DataError, match="cannot be of type 'flaot32'; did you mean 'float32'?"):
        infer([1], types={"c": "flaot32"})


@pytest.mark.parametrize("options", [
    {"ragged": ["cc"]}, {"types": {"cc": "str"}}, {"label_column": "cc"}, {"id_column": "cc"}
])  # fmt: skip
def test_an_option_for_a_column_that_is_not_there_is_named(options: dict[str, Any]) -> None:
    with pytest.raises(DataError, match="there is no column 'cc'"):
        infer([1], **options)


def test_samples_with_different_columns_are_named() -> None:
    samples = survey([{"a": 1, "b": 1}, {"a": 1, "c": 2}, {"a": 1, "c": 2}])
    with pytest.raises(DataError, match="row 1 lacks b and also has c, compared with row 0"):
        infer_columns(samples, SampleOptions())
    found = infer_columns(samples, SampleOptions(on_bad="skip"))
    assert [column.name for column in found] == ["a", "c"]


def test_an_input_without_samples_or_columns_is_refused() -> None:
    with pytest.raises(DataError, match="there are no samples"):
        infer_columns(survey([]), SampleOptions())
    with pytest.raises(DataError, match="samples have no columns"):
        infer_columns(survey([{}]), SampleOptions())


def test_the_class_is_stored_as_label() -> None:
    found = infer_columns(survey([{"kind": "x", "a": 1}], label="kind"), SampleOptions(label_column="kind"))
    assert found == (Column(name="a", dtype="int64", shape=()), Column(name="label", dtype="int64", shape=()))
    with pytest.raises(DataError, match="'kind' is stored as 'label', which is there already"):
        infer_columns(survey([{"kind": "x", "label": 1}], label="kind"), SampleOptions(label_column="kind"))
