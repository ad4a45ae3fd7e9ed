"""Calls of a user's own function: what goes wrong in it is told as an error of its own."""

import inspect
import traceback
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import torchrelay
from torchrelay.core.errors import DataError, RelayError
from torchrelay.core.plugins import load_object

_PACKAGE = str(Path(torchrelay.__file__).parent)
_MOST_FRAMES = 4
"""A traceback of more is not shown."""


class UserCode:
    """With it: what the user's code raises becomes a DataError that says where, and what it was."""

    def __init__(self, where: str, hint: str = "") -> None:
        """`where` begins the error; `hint` ends it, instead of the usual one."""
        self._where = where
        self._hint = hint or "mend the function; the same command goes on, or begins anew"

    def __enter__(self) -> None:
        """Nothing is to be done before."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Raises DataError where the code raised, but for our own errors and a request to stop."""
        if isinstance(error, RelayError) or not isinstance(error, Exception | SystemExit):
            return
        said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise DataError(f"{self._where}: {said}{_show_frames(trace)}", hint=self._hint) from error


def load_function(reference: str) -> Any:
    """What `package.module:function` names; DataError when its module raises as it is imported."""
    with UserCode(f"{reference} cannot be imported", "mend the module"):
        return load_object(reference, "--python")


def call_function(reference: str, options: Mapping[str, Any]) -> Any:
    """What the function gives for the options; DataError when it does not take them, or raises."""
    function = load_function(reference)
    if not callable(function):
        raise DataError(f"{reference} is {type(function).__name__}, not a function")
    _check_options(reference, function, options)
    with UserCode(reference):
        return function(**options)


def iterate(reference: str, found: Iterable[Any], word: str, start: int = 0) -> Iterator[Any]:
    """What is found, one by one; DataError that names the item, a `word` with its number from `start`."""
    number = start
    with UserCode(f"{reference}: {word} {number}"):
        items = iter(found)
    while True:
        with UserCode(f"{reference}: {word} {number}"):
            try:
                item = next(items)
            except StopIteration:
                return
        yield item
        number += 1


def _check_options(reference: str, function: Any, options: Mapping[str, Any]) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of a function in C: its call tells
        return
    names = ", ".join(signature.parameters) or "none"
    try:
        signature.bind(**options)
    except TypeError as error:
        raise DataError(
            f"{reference} cannot be called with --option {', '.join(sorted(options)) or '(none)'}: {error}",
            hint=f"its arguments are: {names}; each is given as --option NAME=VALUE",
        ) from error


def _show_frames(trace: TracebackType | None) -> str:
    """The frames in the user's files, a line each, if they are few."""
    frames = [frame for frame in traceback.extract_tb(trace) if not frame.filename.startswith(_PACKAGE)]
    if len(frames) > _MOST_FRAMES:
        return ""
    return "".join(f"\n  {f.filename}:{f.lineno} in {f.name}: {f.line or ''}" for f in frames)
