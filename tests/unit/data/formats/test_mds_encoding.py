import json
import re
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from torchrelay.data.formats.mds_encoding import (
    ANY_ARRAY,
    DAMAGE,
    NUMBER_TYPES,
    encoding_of,
    parse_encoding,
)
from torchrelay.data.manifest import Column

NAMES = [
    "bytes", "str", "int", *sorted(NUMBER_TYPES), "str_int", "str_float", "str_decimal", "json", "jpeg",
    "png", "pil", "jpeg_array", "jpegarray", "list[jpeg]", "list[png]", "list[pil]", "ndarray",
    "ndarray:float32",
    "ndarray:int16:2,3",
]  # fmt: skip


def round_trip(name: str, value: Any) -> Any:
    encoding = parse_encoding("c", name)
    data = bytes(encoding.encode(value))
    assert encoding.size is None or encoding.size == len(data)
    padded = memoryview(b"??" + data + b"????")
    return encoding.decode(padded, 2, 2 + len(data))


@given(st.sampled_from(sorted(NUMBER_TYPES)).flatmap(
    lambda dtype: st.tuples(st.just(dtype), hnp.from_dtype(np.dtype(dtype), allow_nan=False))
))  # fmt: skip
def test_every_number_survives(pair: tuple[str, Any]) -> None:
    dtype, value = pair
    found = round_trip(dtype, value)
    assert found == value
    assert type(found) is (float if dtype.startswith("float") else int)


@given(
    array=st.sampled_from(sorted(NUMBER_TYPES)).flatmap(
        lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5))
    ),
    form=st.sampled_from(["any", "type", "shape"]),
)
def test_every_array_survives(array: np.ndarray, form: str) -> None:
    dtype = array.dtype.name
    if form == "shape" and array.size and array.ndim:
        name = f"ndarray:{dtype}:{','.join(map(str, array.shape))}"
    else:
        name = "ndarray" if form == "any" else f"ndarray:{dtype}"
    found = round_trip(name, array)
    assert found.shape == array.shape and found.dtype == array.dtype
    np.testing.assert_array_equal(found, array)


@pytest.mark.parametrize("length", [1, 255, 256, 65_535, 65_536])
def test_long_axes_are_told_with_more_bytes(length: int) -> None:
    found = round_trip("ndarray:uint8", np.full((1, length), 7, np.uint8))
    assert found.shape == (1, length) and found[0, -1] == 7


@given(st.text())
def test_texts_survive(text: str) -> None:
    assert round_trip("str", text) == text


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(_JSON)
def test_json_survives(value: Any) -> None:
    assert round_trip("json", value) == value


def test_arrays_inside_json_become_lists() -> None:
    value = {"box": np.array([1.5, 2.0]), "n": np.int64(3)}
    assert round_trip("json", value) == {"box": [1.5, 2.0], "n": 3}


@pytest.mark.parametrize("name", ["bytes", "jpeg", "png"])
def test_bytes_survive(name: str) -> None:
    for value in (b"", b"\x00\xff", bytearray(b"ab"), memoryview(b"cd")):
        assert round_trip(name, value) == bytes(value)


@pytest.mark.parametrize(("name", "value", "dtype", "shape"), [
    ("str_int", -17, "int64", ()), ("str_float", 0.1, "float64", ()), ("str_decimal", "1.50", "str", None),
    ("int", 5, "int64", ()), ("list[jpeg]", [b"a", b""], "list[jpeg]", None),
    ("list[png]", [], "list[png]", None), ("jpeg_array", [b"a", b"bc"], "list[jpeg]", None),
    ("jpegarray", [b"a"], "list[jpeg]", None),
])  # fmt: skip
def test_other_encodings_of_mosaic_survive_and_have_a_column(
    name: str, value: Any, dtype: str, shape: Any
) -> None:
    assert round_trip(name, value) == value
    assert parse_encoding("c", name).column == Column(name="c", dtype=dtype, shape=shape)


@pytest.mark.parametrize(("mode", "shape"), [("RGB", (2, 3, 3)), ("L", (2, 3)), ("RGBA", (2, 3, 4))])
def test_raw_images_are_arrays_of_their_pixels(mode: str, shape: tuple[int, ...]) -> None:
    pixels = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
    data = struct.pack("<3I", 3, 2, len(mode)) + mode.encode() + pixels.tobytes()
    found = parse_encoding("c", "pil").decode(memoryview(data), 0, len(data))
    np.testing.assert_array_equal(found, pixels)
    with pytest.raises(ValueError, match="bytes are no"):
        parse_encoding("c", "pil").decode(memoryview(data), 0, len(data) - 1)


def test_a_raw_image_of_another_mode_is_refused_by_its_name() -> None:
    data = struct.pack("<3I", 1, 1, 1) + b"F" + bytes(4)
    with pytest.raises(ValueError, match="mode 'F'"):
        parse_encoding("c", "pil").decode(memoryview(data), 0, len(data))


def test_pickles_are_refused_with_a_way_out() -> None:
    with pytest.raises(ValueError, match=r"column 'x' holds pickles \(pkl\).* write it again as json"):
        parse_encoding("x", "pkl")


@pytest.mark.parametrize(
    "name", ["", "Bytes", "ndarray:bool", "ndarray:complex64", "ndarray:int8:0", "ndarray::3"]
)
def test_an_unknown_encoding_is_named(name: str) -> None:
    with pytest.raises(ValueError, match="column 'x'"):
        parse_encoding("x", name)


@pytest.mark.parametrize(("column", "name"), [
    (Column(name="c", dtype="float16", shape=()), "float16"),
    (Column(name="c", dtype="int32", shape=(2, 3)), "ndarray:int32:2,3"),
    (Column(name="c", dtype="int32", shape=(0, 3)), "ndarray:int32"),
    (Column(name="c", dtype="int32"), "ndarray:int32"),
    (Column(name="c", dtype="jpeg"), "jpeg"),
])  # fmt: skip
def test_our_columns_have_an_encoding(column: Column, name: str) -> None:
    assert encoding_of(column).name == name


@pytest.mark.parametrize("dtype", [ANY_ARRAY, "list[jpeg]", "object", "pkl", "bool"])
def test_a_column_that_no_shard_holds_is_named(dtype: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"column 'c' has the type '{dtype}'")):
        encoding_of(Column(name="c", dtype=dtype))


@pytest.mark.parametrize(("name", "value"), [
    ("int8", 128), ("uint8", -1), ("int64", 1.5), ("int64", "5"), ("float32", "5"), ("float32", b"5"),
    ("int64", float("nan")), ("int64", None), ("float64", [1.0]), ("str", b"x"), ("bytes", "x"),
    ("str", "\ud800"), ("json", {1, 2}), ("json", b"x"), ("ndarray:int8", np.array([300])),
    ("ndarray:uint8", np.array([-1])), ("ndarray:int8", np.array([0.5])),
    ("ndarray:int8", np.array([np.nan])),
    ("ndarray:int8", "text"), ("ndarray:int8:2", np.zeros(3, np.int8)), ("ndarray", np.array([1j])),
    ("ndarray:int64", np.array([2**63], np.uint64)), ("ndarray", [[1], [2, 3]]),
])  # fmt: skip
def test_a_value_that_does_not_fit_is_never_stored(name: str, value: Any) -> None:
    with pytest.raises(DAMAGE):
        parse_encoding("c", name).encode(value)


def test_numbers_may_be_stored_wider_or_rounded_but_not_changed() -> None:
    assert round_trip("float32", 0.1) == np.float32(0.1)
    assert round_trip("ndarray:float32", np.array([1, 2])).tolist() == [1.0, 2.0]
    assert round_trip("ndarray:int8", np.array([1.0, 2.0])).tolist() == [1, 2]
    assert round_trip("ndarray:uint8", np.array([True, False])).tolist() == [1, 0]
    assert round_trip("ndarray:int32", np.array([1], ">i4")).tolist() == [1]


@given(name=st.sampled_from(NAMES), data=st.binary(max_size=60))
def test_any_bytes_are_a_value_or_an_error_and_never_beyond_their_end(name: str, data: bytes) -> None:
    encoding = parse_encoding("c", name)
    if encoding.size is not None:
        data = data.ljust(encoding.size, b"\0")[: encoding.size]
    try:
        value = encoding.decode(memoryview(data), 0, len(data))
    except DAMAGE:
        return
    if isinstance(value, np.ndarray):
        assert value.nbytes <= len(data)
    elif isinstance(value, bytes):
        assert len(value) <= len(data)


def test_deeply_nested_json_is_an_error() -> None:
    data = b"[" * 200_000
    with pytest.raises(DAMAGE):
        parse_encoding("c", "json").decode(memoryview(data), 0, len(data))
    assert json.loads(bytes(parse_encoding("c", "json").encode({"ä": 1}))) == {"ä": 1}
