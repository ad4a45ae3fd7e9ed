"""The reference page of the recipe, generated from the schema. Pure."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from torchrelay.core.units import Every, format_bytes, write_seconds
from torchrelay.recipe.difference import may_change
from torchrelay.recipe.schema import Recipe

_INTRODUCTION = """\
# Recipe reference

Every key of a recipe, its default and its meaning. This page is generated from the schema
(`torchrelay recipe reference`). An unknown key is an error.

- **type**: what to write. Durations are written `30s`, `10min`, `2h`; intervals are a duration or
  `500 steps`.
- **default**: what holds when the key is left out; *required* keys have none, and a dash means
  that nothing is set.
- **resume**: whether the value may change between two attempts of one run; every other change is
  refused with a listing of the differences. `train.steps`, `train.epochs` and `train.tokens` are
  one choice, the length of the run.

Each key can be set on the command line too: `--set train.steps=50`.
"""
_NAMES = {"string": "text", "boolean": "true or false", "integer": "whole number", "number": "number"}
_LIMITS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}


def render_reference() -> str:
    """The page as Markdown, one table for each section; ends with a newline."""
    definitions = Recipe.model_json_schema()["$defs"]
    return "\n".join([_INTRODUCTION, *_sections("", Recipe, definitions)])


def _sections(prefix: str, section: type[BaseModel], definitions: Mapping[str, Any]) -> Iterator[str]:
    for name, field in section.model_fields.items():
        inner = _section_type(field)
        if inner is None:
            continue
        path = f"{prefix}{name}"
        yield f"{'#' * (2 + prefix.count('.'))} {path}\n"
        yield f"{inner.__doc__}\n"
        yield "\n".join(_table(inner, definitions)) + "\n"
        yield from _sections(f"{path}.", inner, definitions)


def _section_type(field: FieldInfo) -> type[BaseModel] | None:
    """The section that a key, or each item of its list, is."""
    return next(_section_types(field.annotation), None)


def _section_types(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _section_types(argument)


def _is_single(field: FieldInfo) -> bool:
    """Whether the key is one section, whose own keys say all; not a list of sections."""
    candidates = [field.annotation, *get_args(field.annotation)]
    return any(isinstance(c, type) and issubclass(c, BaseModel) for c in candidates)


def _table(section: type[BaseModel], definitions: Mapping[str, Any]) -> Iterator[str]:
    properties = definitions[section.__name__]["properties"]
    yield "| key | type | default | resume | meaning |"
    yield "|---|---|---|---|---|"
    for name, field in section.model_fields.items():
        cells = [
            f"`{name}`",
            "section" if _is_single(field) else _type(properties[name]),
            _default(field),
            _resume(field),
            " ".join((field.description or "").split()),
        ]
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _type(schema: Mapping[str, Any]) -> str:
    """The type in words, from the JSON schema of one key."""
    branches = [branch for branch in schema.get("anyOf", [schema]) if branch.get("type") != "null"]
    return " or ".join(dict.fromkeys(_branch(branch) for branch in branches))


def _branch(schema: Mapping[str, Any]) -> str:
    limits = [f"{sign} {_number(schema[key])}" for key, sign in _LIMITS.items() if key in schema]
    if "written" in schema:
        return ", ".join([str(schema["written"]), *limits])
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return _choice([f"`{value}`" for value in schema["enum"]])
    if schema["type"] == "object":
        return "mapping"
    if schema["type"] == "array":
        return _list(schema)
    return ", ".join([_NAMES[schema["type"]], *limits])


def _list(schema: Mapping[str, Any]) -> str:
    if "prefixItems" in schema:
        return f"list of {len(schema['prefixItems'])} numbers"
    return "list of sections" if "$ref" in schema["items"] else "list of texts"


def _choice(values: Sequence[str]) -> str:
    return " or ".join([", ".join(values[:-1]), values[-1]] if len(values) > 1 else values)


def _number(value: float) -> str:
    return "2^63" if value == 2**63 else f"{value:g}"


def _default(field: FieldInfo) -> str:
    if _is_single(field):
        return "*required*" if field.is_required() else "—"
    if field.is_required():
        return "*required*"
    value = field.get_default(call_default_factory=True)
    if value in (None, {}, ()) or value is PydanticUndefined:
        return "—"
    return f"`{_written(value, field)}`"


def _written(value: object, field: FieldInfo) -> str:
    """A default as it would be written in YAML."""
    if isinstance(value, Every | str):
        return str(value)
    extra = field.json_schema_extra
    written = extra.get("written") if isinstance(extra, dict) else None
    if isinstance(value, float) and written == "duration":
        return write_seconds(value)
    if isinstance(value, int) and written == "size":
        return format_bytes(value).replace(" ", "")
    return f"{value:g}" if isinstance(value, float) else json.dumps(value)


def _resume(field: FieldInfo) -> str:
    if _is_single(field):
        return ""
    return "may change" if may_change(field) else "fixed"
