"""Find a plug-in by name through entry points; the built-ins come in by the same door.

Nothing is imported until it is asked for by name.
"""

import difflib
import importlib
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

from torchrelay.core.errors import RecipeError


def plugin_names(group: str) -> list[str]:
    """Names offered under `torchrelay.<group>`, sorted."""
    return sorted({point.name for point in entry_points(group=f"torchrelay.{group}")})


def load_plugin(group: str, name: str) -> Callable[..., Any]:
    """The factory registered as `name` under `torchrelay.<group>`."""
    for point in entry_points(group=f"torchrelay.{group}", name=name):
        try:
            loaded: Callable[..., Any] = point.load()
        except (ImportError, AttributeError) as error:
            raise RecipeError(
                f"the {group} {name!r} ({point.value}) cannot be loaded: {error}",
                hint="install what it needs, for example: pip install 'torchrelay[hf]'",
            ) from error
        return loaded
    names = plugin_names(group)
    raise RecipeError(
        f"there is no {group} named {name!r}",
        hint=f"installed: {', '.join(names) or 'none'}{nearest(name, names)}",
    )


def load_object(reference: str, where: str) -> Any:
    """The object that `package.module:name` names; `where` is the recipe path for errors.

    The current directory is importable because the command line puts it on the path.
    """
    module_name, _, attribute = reference.partition(":")
    if not module_name or not attribute or module_name.startswith("."):
        raise RecipeError(f"{where}: {reference!r} is not of the form package.module:name")
    try:
        module = importlib.import_module(module_name)
    except (ImportError, SyntaxError) as error:
        raise RecipeError(
            f"{where}: cannot import {module_name!r}: {error}",
            hint="run from the folder that holds the module, or install the package",
        ) from error
    if not hasattr(module, attribute):
        names = [name for name in vars(module) if not name.startswith("_")]
        raise RecipeError(f"{where}: {module_name} has no {attribute!r}{nearest(attribute, names)}")
    return getattr(module, attribute)


def nearest(word: str, choices: list[str]) -> str:
    """The ending `; did you mean 'x'?` for the closest choice, or nothing."""
    close = difflib.get_close_matches(word, choices, n=1, cutoff=0.55)
    return f"; did you mean {close[0]!r}?" if close else ""
