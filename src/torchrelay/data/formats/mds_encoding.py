"""How the values of one column become bytes in an MDS shard, and back in place.

An encoding is named as in the shard: `int64`, `str`, `jpeg`, `ndarray:float32:3,4`… Nothing here
ever runs code that lies in the data: `pkl` is refused by name. Pure.
"""

import json
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchrelay.data.formats.sample import Value
from torchrelay.data.manifest import Column
from torchrelay.store.base import Buffer

ANY_ARRAY = "ndarray"
"""`Column.dtype` of arrays that each tell their own numpy type."""

_CODES = {
    8: "uint8", 9: "int8", 16: "uint16", 17: "int16", 18: "float16", 32: "uint32", 33: "int32",
    34: "float32", 64: "uint64", 65: "int64", 66: "float64",
}  # fmt: skip
"""The byte by which an array tells its type."""
_CODE_OF = {name: code for code, name in _CODES.items()}
_PACK = {
    "uint8": "B", "int8": "b", "uint16": "H", "int16": "h", "float16": "e", "uint32": "I", "int32": "i",
    "float32": "f", "uint64": "Q", "int64": "q", "float64": "d",
}  # fmt: skip
NUMBER_TYPES = frozenset(_PACK)
"""Numpy types that a shard can hold."""
_PIXELS = {"L": 1, "P": 1, "LA": 2, "RGB": 3, "YCbCr": 3, "HSV": 3, "LAB": 3, "RGBA": 4, "RGBX": 4, "CMYK": 4}
"""Bytes of a pixel by the mode of a raw image."""
_MOST_AXES = 63

Decode = Callable[[memoryview, int, int], Value]
"""The value in bytes [start, stop) of a shard; stop is never beyond its end. ValueError or an error of
`DAMAGE` when they hold no such value."""
Encode = Callable[[Any], Buffer]
"""The bytes of a value; ValueError, TypeError or an error of `DAMAGE` when it does not fit the column."""

DAMAGE = (ValueError, TypeError, KeyError, IndexError, OverflowError, RecursionError, struct.error)
"""What encoding or decoding a wrong value raises."""


class Encoding(NamedTuple):
    """One column of a shard."""

    name: str
    """As the shard's header names it."""
    column: Column
    size: int | None
    """Bytes of every value, or None where they differ."""
    decode: Decode
    encode: Encode


def encoding_of(column: Column) -> Encoding:
    """How our own shards hold a column; ValueError when they cannot."""
    shape = column.shape
    if column.dtype in _PACK:
        if shape == ():
            return parse_encoding(column.name, column.dtype)
        if shape is None or 0 in shape:
            return parse_encoding(column.name, f"ndarray:{column.dtype}")
        return parse_encoding(column.name, f"ndarray:{column.dtype}:{','.join(map(str, shape))}")
    if column.dtype not in ("str", "bytes", "json", "jpeg", "png"):
        raise ValueError(f"column {column.name!r} has the type {column.dtype!r}, which no shard holds")
    return parse_encoding(column.name, column.dtype)


def parse_encoding(column: str, name: str) -> Encoding:
    """The encoding `name` of a column; ValueError for one that is not read, such as `pkl`."""
    if name in _PACK:
        return _number(Column(name=column, dtype=name, shape=()), name)
    if name == "int":
        return _number(Column(name=column, dtype="int64", shape=()), name)
    base, _, rest = name.partition(":")
    if base == "ndarray":
        return _array(column, name, rest)
    if name == "pkl":
        raise ValueError(
            f"column {column!r} holds pickles (pkl), which could run any code when they are read; "
            "write it again as json, ndarray or bytes, or leave the column out"
        )
    if name not in _PLAIN:
        raise ValueError(f"column {column!r} has the encoding {name!r}, which is not read")
    dtype, decode, encode = _PLAIN[name]
    shape = () if dtype in _PACK and name.startswith("str_") else None
    return Encoding(name, Column(name=column, dtype=dtype, shape=shape), None, decode, encode)


def _number(column: Column, name: str) -> Encoding:
    layout = struct.Struct(f"<{_PACK[column.dtype]}")
    unpack, pack, whole = layout.unpack_from, layout.pack, column.dtype[0] in "ui"

    def decode(data: memoryview, start: int, stop: int) -> Value:
        value: int | float = unpack(data, start)[0]
        return value

    def encode(value: Any) -> Buffer:
        if isinstance(value, str | bytes):
            raise TypeError(f"{value!r} is not a number")
        if whole and not isinstance(value, int) and int(value) != value:
            raise ValueError(f"{value!r} is not a whole number")
        return pack(int(value) if whole else float(value))

    return Encoding(name, column, layout.size, decode, encode)


def _array(column: str, name: str, rest: str) -> Encoding:
    dtype, _, sizes = rest.partition(":")
    if dtype and dtype not in _CODE_OF:
        raise ValueError(f"column {column!r} has arrays of {dtype!r}, which are not read")
    if not sizes:
        found = Column(name=column, dtype=dtype or ANY_ARRAY)
        return Encoding(name, found, None, _array_decoder(dtype), _array_encoder(dtype))
    shape = tuple(int(size) for size in sizes.split(","))
    if min(shape) < 1 or not dtype:
        raise ValueError(f"column {column!r} has the impossible encoding {name!r}")
    kind = np.dtype(dtype).newbyteorder("<")

    def decode(data: memoryview, start: int, stop: int) -> Value:
        return np.ndarray(shape, kind, data, start)

    def encode(value: Any) -> Buffer:
        array = _as_array(value, kind)
        if array.shape != shape:
            raise ValueError(f"an array of shape {array.shape} does not fit {shape}")
        return array.tobytes()

    size = math.prod(shape) * kind.itemsize
    return Encoding(name, Column(name=column, dtype=dtype, shape=shape), size, decode, encode)


def _array_decoder(dtype: str) -> Decode:
    """Of arrays that tell their shape, and their type where `dtype` is empty."""

    def decode(data: memoryview, start: int, stop: int) -> Value:
        at = start + (not dtype)
        if at >= stop:
            raise ValueError("an array has no bytes")
        kind = np.dtype(dtype or _CODES[data[start]]).newbyteorder("<")
        axes, width = data[at] >> 2, 1 << (data[at] & 3)
        at += 1
        begin = at + axes * width
        if begin > stop:
            raise ValueError(f"the shape of an array needs {begin - at} bytes, there are {stop - at}")
        shape = tuple(int.from_bytes(data[k : k + width], "little") for k in range(at, begin, width))
        if math.prod(shape) * kind.itemsize != stop - begin:
            raise ValueError(f"{stop - begin} bytes are no array of {kind} of shape {shape}")
        return np.ndarray(shape, kind, data, begin)

    return decode


def _array_encoder(dtype: str) -> Encode:
    def encode(value: Any) -> Buffer:
        array = _as_array(value, np.dtype(dtype).newbyteorder("<") if dtype else None)
        if array.ndim > _MOST_AXES:
            raise ValueError(f"an array of {array.ndim} axes has more than {_MOST_AXES}")
        power = next(power for power in range(4) if max(array.shape, default=0) < 1 << (8 << power))
        head = b"" if dtype else bytes([_CODE_OF[array.dtype.name]])
        sizes = b"".join(size.to_bytes(1 << power, "little") for size in array.shape)
        return b"".join((head, bytes([array.ndim << 2 | power]), sizes, array.tobytes()))

    return encode


def _as_array(value: Any, dtype: "np.dtype[Any] | None") -> NDArray[Any]:
    """`value` as an array of `dtype`; ValueError when that would change a number."""
    array = np.asarray(value)
    kind = np.dtype(np.uint8) if array.dtype == np.bool_ else array.dtype
    target = kind.newbyteorder("<") if dtype is None else dtype
    if array.dtype.kind not in "buif" or target.name not in _CODE_OF:
        raise ValueError(f"an array of {array.dtype} is not stored")
    if array.dtype == target:
        return array
    with np.errstate(invalid="ignore", over="ignore"):
        cast = array.astype(target)
    if array.size and not np.can_cast(array.dtype, target) and not _same_numbers(cast, array):
        raise ValueError(f"an array of {array.dtype} does not fit {target.name}")
    return cast


def _same_numbers(cast: NDArray[Any], array: NDArray[Any]) -> bool:
    if cast.dtype.kind == "f":
        return True  # only rounded
    return np.array_equal(cast, array)


def _decode_bytes(data: memoryview, start: int, stop: int) -> Value:
    return data[start:stop].tobytes()


def _decode_str(data: memoryview, start: int, stop: int) -> Value:
    return str(data[start:stop], "utf-8")


def _decode_json(data: memoryview, start: int, stop: int) -> Value:
    value: Value = json.loads(data[start:stop].tobytes())
    return value


def _decode_int(data: memoryview, start: int, stop: int) -> Value:
    value = int(str(data[start:stop], "utf-8"))
    if not -(2**63) <= value < 2**63:
        raise ValueError(f"{value} does not fit int64")
    return value


def _decode_float(data: memoryview, start: int, stop: int) -> Value:
    return float(str(data[start:stop], "utf-8"))


def _decode_pil(data: memoryview, start: int, stop: int) -> Value:
    """Raw pixels: u32 width, height, length of the mode's name; that name; the rows."""
    width, height, length = struct.unpack_from("<3I", data[start:stop])
    begin = start + 12 + length
    mode = str(data[start + 12 : min(begin, stop)], "utf-8")
    if mode not in _PIXELS:
        raise ValueError(f"a raw image of mode {mode!r} is not read")
    shape = (height, width) if _PIXELS[mode] == 1 else (height, width, _PIXELS[mode])
    if math.prod(shape) != stop - begin:
        raise ValueError(f"{stop - begin} bytes are no {mode} image of {width} x {height}")
    return np.ndarray(shape, np.uint8, data, begin)


def _list_decoder(skipped: int, decode: Decode) -> Decode:
    """Of a list: `skipped` bytes, u32 count, u32 size of each, then the values."""

    def decode_list(data: memoryview, start: int, stop: int) -> Value:
        (count,) = struct.unpack_from("<I", data[start:stop], skipped)
        sizes_at = start + skipped + 4
        at = sizes_at + 4 * count
        if at > stop:
            raise ValueError(f"a list of {count} values does not fit {stop - start} bytes")
        values = []
        for size in struct.unpack_from(f"<{count}I", data, sizes_at):
            if at + size > stop:
                raise ValueError(f"a value of {size} bytes in a list does not fit")
            values.append(decode(data, at, at + size))
            at += size
        return values

    return decode_list


def _list_encoder(head: bytes) -> Encode:
    def encode(values: Sequence[Buffer]) -> Buffer:
        sizes = struct.pack(f"<{len(values) + 1}I", len(values), *map(len, values))
        return b"".join((head, sizes, *values))

    return encode


def _encode_bytes(value: Any) -> Buffer:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(f"{type(value).__name__} is not bytes")
    return value


def _encode_str(value: Any) -> Buffer:
    if not isinstance(value, str):
        raise TypeError(f"{type(value).__name__} is not a text")
    return value.encode()


def _encode_json(value: Any) -> Buffer:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_plain).encode()


def _plain(value: Any) -> Any:
    """Numbers and arrays of numpy inside JSON."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is not JSON")


def _encode_digits(value: Any) -> Buffer:
    return str(value).encode()


def _refuse_to_encode(value: Any) -> Buffer:
    raise TypeError("this encoding is only read")


_BYTES = (_decode_bytes, _encode_bytes)
_PLAIN: Mapping[str, tuple[str, Decode, Encode]] = {
    "bytes": ("bytes", *_BYTES),
    "jpeg": ("jpeg", *_BYTES),
    "png": ("png", *_BYTES),
    "str": ("str", _decode_str, _encode_str),
    "json": ("json", _decode_json, _encode_json),
    "str_int": ("int64", _decode_int, _encode_digits),
    "str_float": ("float64", _decode_float, _encode_digits),
    "str_decimal": ("str", _decode_str, _encode_digits),
    "pil": ("uint8", _decode_pil, _refuse_to_encode),
    "jpeg_array": ("list[jpeg]", _list_decoder(0, _decode_bytes), _list_encoder(b"")),
    "jpegarray": ("list[jpeg]", _list_decoder(0, _decode_bytes), _list_encoder(b"")),
    "list[jpeg]": ("list[jpeg]", _list_decoder(4, _decode_bytes), _list_encoder(bytes(4))),
    "list[png]": ("list[png]", _list_decoder(4, _decode_bytes), _list_encoder(bytes(4))),
    "list[pil]": ("list[uint8]", _list_decoder(4, _decode_pil), _refuse_to_encode),
}
"""Encodings of values that tell their size: type of the column, decode, encode."""
