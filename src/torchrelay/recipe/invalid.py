"""What pydantic finds wrong with a value, in the words of a recipe. Pure."""

import re
import reprlib
from collections.abc import Sequence
from typing import Any

_BRANCH = re.compile(r"(constrained-)?(int|str|float|bool)|(literal|tuple)\[.*\]|function-\w+\[.*\]")
"""How pydantic names, in a location, the branch of a union that it tried."""
_WORDS = (
    (r"a valid dictionary( or instance of \w+)?", "a section of keys"),
    (r"a valid tuple", "a list"),
    (r"^Tuple should", "list should"),
    (r" after validation", ""),
)


def key_path(location: Sequence[str | int]) -> str:
    """The recipe path of a location, such as `data.skip[0]`; branches of unions are left out."""
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif not is_union_branch(part):
            path += f".{part}" if path else part
    return path


def is_union_branch(part: object) -> bool:
    """Whether this part of a location is no key but one of the types that a value may have."""
    return isinstance(part, str) and _BRANCH.fullmatch(part) is not None


def say_invalid(item: Any) -> str:
    """What is wrong with the value, and the value; `item` is one of pydantic's `errors()`."""
    message = str(item["msg"])
    if item["type"] == "value_error":  # raised by our own parsers, which quote the value
        return message.removeprefix("Value error, ")
    for pattern, words in _WORDS:
        message = re.sub(pattern, words, message)
    return f"{message[0].lower()}{message[1:]}, got {reprlib.repr(item['input'])}"
