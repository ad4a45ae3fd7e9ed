"""What differs between the recipe a run was started with and the one it is resumed with. Pure."""

import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from torchrelay.recipe.schema import Recipe, TrainSection

_LENGTHS = ("steps", "epochs", "tokens")
LENGTH_PATH = "train.steps|epochs|tokens"
"""The path of a change from one way of giving the run's length to another: it is one choice."""


class Change(NamedTuple):
    """One value that differs."""

    path: str
    """Recipe path, such as `train.optimizer.lr`; keys of a free mapping continue it."""
    old: object
    """JSON value in the run's recipe; None where the key is not set there."""
    new: object
    """JSON value in the recipe at hand; None where the key is not set there."""
    allowed: bool
    """Whether the run may go on with the new value."""


def differences(old: Recipe, new: Recipe) -> list[Change]:
    """Every value that differs, in the order of the schema; empty when the recipes say the same."""
    return list(_section_changes("", old, new))


def refuse_message(changes: Sequence[Change]) -> str:
    """Lines that list what may not change within a run, and what else differs but may."""
    forbidden = [change for change in changes if not change.allowed]
    allowed = [change for change in changes if change.allowed]
    lines = ["the recipe is not the one this run was started with"]
    if forbidden:
        lines += ["  cannot change within a run:", *map(_line, forbidden)]
    if allowed:
        lines += ["  may change:", *map(_line, allowed)]
    return "\n".join(lines)


def may_change(field: FieldInfo) -> bool:
    """Whether the schema marks a field as safe to change between the attempts of a run."""
    extra = field.json_schema_extra
    return isinstance(extra, dict) and extra.get("resume") == "may change"


def _section_changes(prefix: str, old: BaseModel, new: BaseModel) -> Iterator[Change]:
    for name, field in type(old).model_fields.items():
        if isinstance(old, TrainSection) and isinstance(new, TrainSection) and name in _LENGTHS:
            if name == _LENGTHS[0]:
                yield from _length_changes(old, new)
            continue
        path = f"{prefix}{name}"
        before, after = getattr(old, name), getattr(new, name)
        if isinstance(before, BaseModel) and type(before) is type(after):
            yield from _section_changes(f"{path}.", before, after)
        else:
            values = _json(old, name), _json(new, name)
            yield from _value_changes(path, *values, allowed=may_change(field))


def _value_changes(path: str, old: Any, new: Any, *, allowed: bool) -> Iterator[Change]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in dict.fromkeys([*old, *new]):
            yield from _value_changes(f"{path}.{key}", old.get(key), new.get(key), allowed=allowed)
    elif old != new:
        yield Change(path, old, new, allowed)


def _length_changes(old: TrainSection, new: TrainSection) -> Iterator[Change]:
    before, after = _length(old), _length(new)
    if before == after:
        return
    allowed = may_change(TrainSection.model_fields[after[0]])
    if before[0] == after[0]:
        yield Change(f"train.{after[0]}", before[1], after[1], allowed)
    else:
        yield Change(LENGTH_PATH, f"{before[0]}: {before[1]}", f"{after[0]}: {after[1]}", allowed)


def _length(train: TrainSection) -> tuple[str, object]:
    given = [(key, getattr(train, key)) for key in _LENGTHS if getattr(train, key) is not None]
    return given[0] if given else (_LENGTHS[0], None)


def _json(section: BaseModel, name: str) -> Any:
    return section.model_dump(mode="json", include={name}, exclude_none=True).get(name)


def _line(change: Change) -> str:
    return f"    {change.path}: {_shown(change.old)} -> {_shown(change.new)}"


def _shown(value: object) -> str:
    if value is None:
        return "not set"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."
