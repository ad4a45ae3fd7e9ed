"""Tables in Arrow's memory as samples: one row a sample, numbers as numpy values, images as their bytes.

What Hugging Face `datasets` notes in a schema is understood: classes with names, images, arrays.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchrelay.data.build.sample_input import ImageBytes, import_package

Features = Mapping[str, Any]
"""What `datasets` says of every column."""
Values = Sequence[Any] | NDArray[Any]
"""One value for every row; None where there is none."""


def import_pyarrow(what: str) -> Any:
    """The package pyarrow; DataError where it is not installed."""
    return import_package("pyarrow", what)


def read_features(schema: Any) -> Features:
    """What `datasets` noted in an Arrow schema; empty where it noted nothing."""
    noted = (schema.metadata or {}).get(b"huggingface")
    if noted is None:
        return {}
    try:
        features = json.loads(noted)["info"]["features"]
    except (ValueError, KeyError, TypeError):
        return {}
    return features if isinstance(features, dict) else {}


def class_names(features: Features) -> dict[str, tuple[str, ...]]:
    """Names of the classes of every column that has such."""
    return {
        name: tuple(str(label) for label in feature["names"])
        for name, feature in features.items()
        if isinstance(feature, dict) and feature.get("_type") == "ClassLabel" and "names" in feature
    }


def rows(batch: Any, features: Features) -> Iterator[dict[str, Any]]:
    """The rows of a record batch."""
    names = batch.schema.names
    columns = [_values(batch.column(k), features.get(name)) for k, name in enumerate(names)]
    for values in zip(*columns, strict=True):
        yield dict(zip(names, values, strict=True))


def describe_schema(schema: Any) -> dict[str, str]:
    """Type of every column, in words."""
    return {field.name: str(field.type) for field in schema}


def schema_difference(found: dict[str, str], first: dict[str, str]) -> str:
    """What differs between two schemas, in words; empty where nothing does."""
    lost = [f"no column {name!r}" for name in first if name not in found]
    more = [f"a column {name!r}" for name in found if name not in first]
    other = [
        f"{name!r} as {found[name]} instead of {kind}"
        for name, kind in first.items()
        if name in found and found[name] != kind
    ]
    return ", ".join(lost + more + other)


def _values(column: Any, feature: Any) -> Values:
    kind = feature.get("_type") if isinstance(feature, dict) else None
    if kind == "Image":
        return [_image(value) for value in column.to_pylist()]
    if kind in ("Array2D", "Array3D", "Array4D", "Array5D"):
        return _shaped(column, feature)
    arrow = import_pyarrow("reading tables")
    types = arrow.types
    if types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if column.null_count:
        return _with_gaps(column)
    if types.is_boolean(column.type) or _is_number(types, column.type):
        return _numbers(column)
    if types.is_fixed_size_list(column.type) and _is_full(types, column):
        size = column.type.list_size
        return _numbers(column.flatten()).reshape(len(column), size)
    if (types.is_list(column.type) or types.is_large_list(column.type)) and _is_full(types, column):
        return _lists(column)
    values: list[Any] = column.to_pylist()
    return values


def _with_gaps(column: Any) -> Values:
    """Values of a column in which some are missing, of the same types as if none were."""
    present = column.drop_null()
    values = iter(_values(present, None))
    return [next(values) if valid else None for valid in column.is_valid().to_pylist()]


def _is_number(types: Any, kind: Any) -> bool:
    return bool(types.is_integer(kind) or types.is_floating(kind))


def _is_full(types: Any, column: Any) -> bool:
    """Whether the lists of a column hold nothing but numbers, none missing."""
    return _is_number(types, column.type.value_type) and not column.flatten().null_count


def _numbers(column: Any) -> NDArray[Any]:
    array: NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return array


def _lists(column: Any) -> list[NDArray[Any]]:
    flat = _numbers(column.flatten())
    offsets = column.offsets.to_numpy() - column.offsets[0].as_py()
    return [flat[offsets[row] : offsets[row + 1]] for row in range(len(column))]


def _shaped(column: Any, feature: Mapping[str, Any]) -> list[Any]:
    """Arrays of two or more axes, which lie as lists of lists."""
    storage = getattr(column, "storage", column)
    return [
        None if value is None else np.array(value, dtype=feature.get("dtype"))
        for value in storage.to_pylist()
    ]


def _image(value: Any) -> Any:
    """An image with its bytes, or None where only a path is there."""
    data = value.get("bytes") if isinstance(value, dict) else value
    return ImageBytes(data) if isinstance(data, bytes) else None
