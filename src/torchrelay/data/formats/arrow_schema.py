"""Which column of a Parquet file becomes which column of a dataset, and the Arrow type it is kept in."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from torchrelay.data.formats.unpack import import_extra
from torchrelay.data.manifest import Column

NUMBERS = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "float32", "float64",
)  # fmt: skip
"""Types of numbers, as numpy names them."""

_NUMBER_NAMES = {"halffloat": "float16", "float": "float32", "double": "float64"}


class KeptColumn(NamedTuple):
    """One column as it is kept on the node's disk."""

    column: Column
    type: Any
    """A `pyarrow.DataType`: numbers, string, binary, lists of numbers, or nested ones that become JSON."""


def keep_columns(schema: Any) -> list[KeptColumn]:
    """The columns of a `pyarrow.Schema`; ValueError that names one which cannot be read.

    Times become whole numbers of their unit, categories their values, and a picture of a Hugging
    Face dataset (its bytes beside a path) its bytes.
    """
    if len(set(schema.names)) != len(schema.names):
        raise ValueError("two of its columns have the same name")
    return [_keep(field.name, plain_type(field.type)) for field in schema]


def plain_type(kind: Any) -> Any:
    """The `pyarrow.DataType` in which values of type `kind` are kept."""
    pa = import_extra("pyarrow", "reading Parquet")
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return plain_type(kind.storage_type)
    if types.is_dictionary(kind):
        return plain_type(kind.value_type)
    if types.is_string_view(kind) or types.is_large_string(kind):
        return pa.string()
    if types.is_fixed_size_binary(kind) or types.is_binary_view(kind) or types.is_large_binary(kind):
        return pa.binary()
    if types.is_temporal(kind):
        return pa.int32() if kind.bit_width == 32 else pa.int64()
    if _is_picture(kind):
        return pa.binary()
    if types.is_large_list(kind):
        return pa.list_(plain_type(kind.value_type))
    return kind


def _is_picture(kind: Any) -> bool:
    """Whether values are the bytes of a file beside its path."""
    pa = import_extra("pyarrow", "reading Parquet")
    if not pa.types.is_struct(kind) or {field.name for field in kind} != {"bytes", "path"}:
        return False
    return bool(pa.types.is_binary(kind.field("bytes").type))


def number_name(kind: Any) -> str | None:
    """How numpy names a type of numbers, or None where it is none."""
    name = _NUMBER_NAMES.get(str(kind), str(kind))
    return name if name in NUMBERS else None


def _keep(name: str, kind: Any) -> KeptColumn:
    number = number_name(kind)
    if number is not None:
        return KeptColumn(Column(name=name, dtype=number, shape=()), kind)
    if str(kind) in ("string", "binary"):
        return KeptColumn(Column(name=name, dtype="str" if str(kind) == "string" else "bytes"), kind)
    sizes, inner = _array_of(kind)
    number = number_name(inner)
    if sizes is not None and number is not None and number != "bool":
        return KeptColumn(Column(name=name, dtype=number, shape=None if None in sizes else sizes), kind)
    bad = [str(leaf) for leaf in _leaves(kind) if number_name(leaf) is None and str(leaf) != "string"]
    if bad:
        raise ValueError(f"column {name!r} is of type {kind}, which is not read")
    return KeptColumn(Column(name=name, dtype="json"), kind)


def _array_of(kind: Any) -> tuple[Any, Any]:
    """Sizes and type of the numbers of a list, or of fixed-size lists in each other; None for others."""
    pa = import_extra("pyarrow", "reading Parquet")
    if pa.types.is_list(kind):
        return (None,), kind.value_type
    sizes: tuple[int, ...] = ()
    while pa.types.is_fixed_size_list(kind):
        sizes, kind = (*sizes, kind.list_size), kind.value_type
    return sizes or None, kind


def _leaves(kind: Any) -> Iterator[Any]:
    if kind.num_fields == 0:
        yield kind
    for place in range(kind.num_fields):
        yield from _leaves(kind.field(place).type)
