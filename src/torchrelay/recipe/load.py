"""YAML and `--set a.b=c` to a Recipe; every problem found is reported in one error."""

import copy
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_args

import yaml
from pydantic import BaseModel, ValidationError

from torchrelay.core.errors import RecipeError
from torchrelay.core.plugins import nearest
from torchrelay.recipe.check import find_problems
from torchrelay.recipe.invalid import is_union_branch, key_path, say_invalid
from torchrelay.recipe.problem import Problem
from torchrelay.recipe.schema import Recipe


class _Loader(yaml.SafeLoader):
    """Safe YAML that reads 1e-3 as a number and refuses a key given twice."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)


_DEEPEST = 20
"""Levels of keys that a recipe may have; a file that refers to itself would never end."""


class _Place(NamedTuple):
    text: str
    """Name of the file, for messages."""
    lines: dict[str, int]
    """Line of every key path that the file gives, from 1."""


def load_recipe(path: str, settings: Sequence[str] = ()) -> Recipe:
    """The recipe at `path` with `settings` ("train.steps=50") laid over it.

    Raises RecipeError that lists every problem with its recipe path, line and the nearest valid key.
    """
    text = _read(path)
    tree, lines = _parse(text, path)
    for setting in settings:
        _apply(tree, setting, lines)
    return _validate(tree, _Place(path, lines))


def recipe_hash(recipe: Recipe) -> str:
    """sha256 over the effective recipe, as 64 hex digits."""
    canonical = json.dumps(recipe.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise RecipeError(f"there is no recipe at {path}", hint="make one with: torchrelay init") from error
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"cannot read {path}: {error}") from error


def _parse(text: str, path: str) -> tuple[dict[str, Any], dict[str, int]]:
    lines: dict[str, int] = {}
    try:
        node = yaml.compose(text, Loader=_Loader)
        if node is not None:
            _collect_lines(node, "", lines)
        tree = yaml.load(text, Loader=_Loader)  # noqa: S506 - _Loader is a SafeLoader
    except (yaml.YAMLError, ValueError) as error:
        raise RecipeError(f"{path}{_line(error)}: not valid YAML: {_reason(error)}") from error
    if not isinstance(tree, dict):
        raise RecipeError(f"{path}: a recipe is a mapping of sections such as run, model, data, train")
    return tree, lines


def _line(error: Exception) -> str:
    mark = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
    return f":{mark.line + 1}" if mark else ""


def _reason(error: Exception) -> str:
    problem = error.problem if isinstance(error, yaml.MarkedYAMLError) else None
    return problem or str(error).splitlines()[0]


def _collect_lines(node: yaml.Node, prefix: str, lines: dict[str, int]) -> None:
    if not isinstance(node, yaml.MappingNode):
        return
    if prefix.count(".") > _DEEPEST:
        raise yaml.MarkedYAMLError(problem="keys are nested too deeply", problem_mark=node.start_mark)
    for key, value in node.value:
        path = f"{prefix}{key.value}"
        if path in lines:
            raise yaml.MarkedYAMLError(
                problem=f"{path} is given twice (first in line {lines[path]})", problem_mark=key.start_mark
            )
        lines[path] = key.start_mark.line + 1
        _collect_lines(value, f"{path}.", lines)


def _apply(tree: dict[str, Any], setting: str, lines: dict[str, int]) -> None:
    path, equals, text = setting.partition("=")
    if not equals or not path:
        raise RecipeError(f"--set {setting!r} is not of the form key.key=value")
    try:
        value = yaml.load(text, Loader=_Loader)  # noqa: S506 - _Loader is a SafeLoader
    except (yaml.YAMLError, ValueError) as error:
        raise RecipeError(f"--set {setting!r}: the value is not valid YAML: {_reason(error)}") from error
    *parents, last = path.split(".")
    for depth, parent in enumerate(parents):
        lines.setdefault(".".join(parents[: depth + 1]), 0)
        child = tree.get(parent)
        if not isinstance(child, dict):
            child = tree[parent] = {}
        tree = child
    tree[last] = value
    lines[path] = 0


def _validate(tree: dict[str, Any], place: _Place) -> Recipe:
    try:
        recipe = Recipe.model_validate(tree)
    except ValidationError as error:
        items = error.errors()
        problems = [*map(_problem, items), *_problems_of_the_rest(tree, items)]
        raise _error(problems, place) from error
    problems = find_problems(recipe)
    if problems:
        raise _error(problems, place)
    return recipe


def _problems_of_the_rest(tree: dict[str, Any], items: Sequence[Any]) -> list[Problem]:
    """Impossible combinations among the values that are valid, so that one run reports everything."""
    rest = copy.deepcopy(tree)
    for item in items:
        _remove(rest, [part for part in item["loc"] if not is_union_branch(part)])
    try:
        recipe = Recipe.model_validate(rest)
    except ValidationError:
        return []
    return [problem for problem in find_problems(recipe) if not _follows(problem, items)]


def _remove(tree: Any, path: list[Any]) -> None:
    for part in path[:-1]:
        tree = tree.get(part) if isinstance(tree, dict) else None
    if isinstance(tree, dict):
        tree.pop(path[-1], None)


def _follows(problem: Problem, items: Sequence[Any]) -> bool:
    """Whether the problem may only be there because an invalid value was left out."""
    for item in items:
        path = key_path(item["loc"])
        same_section = problem.path.split(".")[0] == str(item["loc"][0])
        if f"{path}.".startswith(f"{problem.path}.") or (same_section and item["type"] != "extra_forbidden"):
            return True
    return False


def _problem(item: Any) -> Problem:
    path = key_path(item["loc"])
    if item["type"] == "extra_forbidden":
        siblings = _keys_at([part for part in item["loc"][:-1] if isinstance(part, str)])
        close = nearest(str(item["loc"][-1]), siblings)
        return Problem(path, f"unknown key{close}", "" if close else f"valid keys: {', '.join(siblings)}")
    if item["type"] == "missing":
        return Problem(path, "is missing", "")
    return Problem(path, say_invalid(item), "")


def _keys_at(parts: list[str]) -> list[str]:
    section: type[BaseModel] = Recipe
    for part in parts:
        (section,) = _sections(section.model_fields[part].annotation)
    return list(section.model_fields)


def _sections(annotation: Any) -> Iterator[type[BaseModel]]:
    """The kinds of section in a type: itself, or those in a list or union."""
    parts = get_args(annotation)
    if not parts and isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in parts:
        yield from _sections(part)


def _error(problems: Sequence[Problem], place: _Place) -> RecipeError:
    merged: dict[str, list[Problem]] = {}
    for problem in problems:
        merged.setdefault(problem.path, []).append(problem)
    rows = []
    for path, group in merged.items():
        line = place.lines.get(path, place.lines.get(path.partition("[")[0], -1))
        where = "--set" if line == 0 else f"{place.text}:{line}" if line > 0 else place.text
        text = " or ".join(dict.fromkeys(problem.message for problem in group))
        hint = next((f" ({problem.hint})" for problem in group if problem.hint), "")
        rows.append(f"  {where}: {path}: {text}{hint}")
    count = "1 problem" if len(rows) == 1 else f"{len(rows)} problems"
    return RecipeError(
        f"{place.text} has {count}:\n" + "\n".join(rows),
        hint="torchrelay recipe reference lists every key with its meaning",
    )
