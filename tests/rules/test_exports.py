"""What can be imported by name stays what is promised, and entry points lead somewhere."""

import ast
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

import torchrelay
from tests.rules.source import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def unlisted(module: ModuleType) -> set[str]:
    """Public names that a module holds and does not list, or lists and does not hold."""
    held = {
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
    }
    listed = {name for name in module.__all__ if not name.startswith("_")}
    return (held ^ listed) | {name for name in module.__all__ if not hasattr(module, name)}


def missing_target(reference: str, root: Path) -> str:
    """Why `package.module:name` cannot be an entry point, or empty."""
    module, _, name = reference.partition(":")
    path = root.joinpath(*module.split(".")).with_suffix(".py")
    if not path.is_file():
        return f"{reference}: there is no {path.name}"
    tree = ast.parse(path.read_text())
    names = {n.name for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    return "" if name in names else f"{reference}: {path.name} does not define {name}"


def references() -> list[str]:
    groups = [PROJECT["scripts"], *PROJECT["entry-points"].values()]
    return [reference for group in groups for reference in group.values()]


def test_the_package_exports_exactly_what_it_lists() -> None:
    assert unlisted(torchrelay) == set()
    assert torchrelay.__all__ == sorted(torchrelay.__all__)
    assert len(torchrelay.__all__) <= 25


def test_a_name_that_is_not_listed_or_not_there_is_found() -> None:
    module = ModuleType("example")
    module.__dict__.update({"__all__": ["there", "absent"], "there": 1, "hidden": 2, "_own": 3})
    assert unlisted(module) == {"absent", "hidden"}


@pytest.mark.parametrize("reference", references())
def test_every_entry_point_leads_to_a_definition(reference: str) -> None:
    assert missing_target(reference, ROOT / "src") == ""


@pytest.mark.parametrize(
    "reference", ["torchrelay.no_such:f", "torchrelay.core.units:no_such", "torchrelay.core.units"]
)
def test_an_entry_point_that_leads_nowhere_is_found(reference: str) -> None:
    assert missing_target(reference, ROOT / "src") != ""
