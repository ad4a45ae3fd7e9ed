"""The value types that recipe fields are made of, and what every section has in common."""

from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, Strict

from torchrelay.core.units import (
    Every,
    parse_bytes,
    parse_every,
    parse_fraction,
    parse_seconds,
    write_seconds,
)


class Section(BaseModel):
    """A part of the recipe: immutable, no unknown keys, no silent conversion of types."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


Seconds = Annotated[
    float,
    Strict(False),
    BeforeValidator(parse_seconds),
    PlainSerializer(write_seconds, return_type=str, when_used="json"),
    Field(json_schema_extra={"written": "duration"}),
]
"""A duration: "30s", "10min", "2h"."""

Size = Annotated[
    int,
    Strict(False),
    BeforeValidator(parse_bytes),
    Field(json_schema_extra={"written": "size"}),
]
"""Bytes: "64MiB", "200GB", or a bare number."""

Interval = Annotated[
    Every,
    BeforeValidator(parse_every),
    PlainSerializer(str, return_type=str, when_used="json"),
    Field(json_schema_extra={"written": "steps or duration"}),
]
"""How often: "500 steps" or "10min"."""

Share = Annotated[
    float, Strict(False), BeforeValidator(parse_fraction), Field(json_schema_extra={"written": "share"})
]
"""A part of a whole: "10%" or 0.1."""

Item = TypeVar("Item")
Listed = Annotated[tuple[Item, ...], Strict(False)]
"""Any number of values, written as a YAML list."""

Pair = Annotated[tuple[float, float], Strict(False)]

PositiveInt = Annotated[int, Field(ge=1)]


def safe(default: Any, **constraints: Any) -> Any:
    """A field that may be changed when a run is resumed: it alters neither the data nor the arithmetic."""
    return Field(default, json_schema_extra={"resume": "may change"}, **constraints)
