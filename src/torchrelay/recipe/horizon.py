"""Lengths in steps or tokens ("100 steps", "2M tokens"), and the length of a run. Pure."""

import math
import re
from typing import Literal, NamedTuple

_SCALE = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "b": 10**9, "t": 10**12}
_RANGE = re.compile(r"\s*([0-9][0-9_]*)\s*\.\.\s*([0-9][0-9_]*)\s*")
_FORM = re.compile(r"\s*([0-9][0-9_]*(?:\.[0-9]+)?)\s*([kmgbtKMGBT]?)\s*(steps?|tokens?)?\s*")


class Horizon(NamedTuple):
    """A length of training."""

    amount: int
    unit: Literal["steps", "tokens"]

    def steps(self, tokens_per_step: int) -> int:
        """In whole steps, rounded up; `tokens_per_step` is only used for tokens."""
        return self.amount if self.unit == "steps" else math.ceil(self.amount / tokens_per_step)


def parse_horizon(text: int | str) -> Horizon:
    """A bare number is steps; "2M tokens" is tokens."""
    match = _FORM.fullmatch(str(text))
    if match is None:
        raise ValueError(f'{text!r} is not a length; write 100, "100 steps" or "2M tokens"')
    amount = float(match.group(1).replace("_", "")) * _SCALE[match.group(2).lower()]
    if amount > 2**63:
        raise ValueError(f"{str(text)[:20]}... is too long a run")
    return Horizon(round(amount), "tokens" if (match.group(3) or "").startswith("token") else "steps")


def parse_tokens(text: int | str) -> Horizon:
    """A number of tokens, with or without the word."""
    horizon = parse_horizon(text)
    if isinstance(text, str) and "step" in text:
        raise ValueError(f'{text!r} is not a number of tokens; write "300M" or use train.steps')
    if horizon.amount < 1:
        raise ValueError(f"{text!r} is not a positive number of tokens")
    return Horizon(horizon.amount, "tokens")


def parse_range(text: str) -> tuple[int, int]:
    """Start and stop of a range of slots such as "12000..12800"; the stop is not in it."""
    match = _RANGE.fullmatch(text)
    if match is None:
        raise ValueError(f'{text!r} is not a range of slots; write "12000..12800"')
    start, stop = (int(number.replace("_", "")) for number in match.groups())
    if not start < stop <= 2**53:
        raise ValueError(f"{text!r} holds no slot; the second number must be above the first")
    return start, stop
