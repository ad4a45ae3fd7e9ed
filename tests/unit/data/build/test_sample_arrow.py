import numpy as np
import pyarrow as pa
import pytest

from torchrelay.data.build.sample_arrow import (
    class_names,
    describe_schema,
    read_features,
    rows,
    schema_difference,
)
from torchrelay.data.build.sample_input import ImageBytes


def test_numbers_are_taken_as_they_lie_and_gaps_as_none() -> None:
    batch = pa.record_batch({"x": pa.array([1, None, 3], pa.int8()), "y": pa.array([[1], [2, 3], None])})
    found = list(rows(batch, {}))
    assert [row["x"] for row in found] == [1, None, 3]
    assert isinstance(found[0]["x"], np.int8)
    assert found[1]["y"].tolist() == [2, 3] and found[2]["y"] is None


def test_a_slice_of_lists_gives_its_own_values() -> None:
    batch = pa.record_batch({"y": pa.array([[1], [2, 3], [4]])}).slice(1)
    assert [row["y"].tolist() for row in rows(batch, {})] == [[2, 3], [4]]


def test_lists_with_gaps_stay_lists() -> None:
    batch = pa.record_batch({"y": pa.array([[1, None], [2]])})
    assert [row["y"] for row in rows(batch, {})] == [[1, None], [2]]


def test_an_image_of_which_only_the_path_is_there_has_no_value() -> None:
    batch = pa.record_batch(
        {"i": pa.array([{"bytes": b"x", "path": None}, {"bytes": None, "path": "a.png"}])}
    )
    first, second = rows(batch, {"i": {"_type": "Image"}})
    assert first["i"] == ImageBytes(b"x") and isinstance(first["i"], ImageBytes)
    assert second["i"] is None


@pytest.mark.parametrize("noted", [None, b"{", b"[]", b'{"info": {"features": 1}}'])
def test_a_schema_without_sound_notes_has_no_features(noted: bytes | None) -> None:
    schema = pa.schema([("x", pa.int8())], metadata=None if noted is None else {"huggingface": noted})
    assert read_features(schema) == {}


def test_classes_without_names_are_none() -> None:
    assert class_names({"a": {"_type": "ClassLabel"}, "b": 1, "c": {"_type": "Image"}}) == {}


def test_schemas_that_agree_do_not_differ() -> None:
    schema = describe_schema(pa.schema([("x", pa.int8()), ("y", pa.string())]))
    assert schema_difference(schema, dict(reversed(schema.items()))) == ""
