"""What a check of a recipe finds."""

from typing import NamedTuple


class Problem(NamedTuple):
    """One thing that is wrong, at a recipe path."""

    path: str
    message: str
    hint: str = ""
