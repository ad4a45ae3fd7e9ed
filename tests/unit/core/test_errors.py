import inspect

import pytest

from torchrelay.core import errors
from torchrelay.core.errors import ExitCode, RelayError


def all_errors() -> list[type[RelayError]]:
    members = vars(errors).values()
    return [member for member in members if inspect.isclass(member) and issubclass(member, RelayError)]


def test_the_hint_is_shown_after_the_message() -> None:
    assert str(RelayError("it broke", hint="mend it")) == "it broke\n\nhint: mend it"
    assert str(RelayError("it broke")) == "it broke"


@pytest.mark.parametrize("error", all_errors())
def test_the_tree_drawn_at_the_top_names_every_error_with_its_code(error: type[RelayError]) -> None:
    lines = [line for line in (errors.__doc__ or "").splitlines() if f" {error.__name__} " in f" {line} "]
    assert len(lines) == 1
    drawn = [word for word in lines[0].split() if word.isdigit()]
    if drawn:
        assert int(drawn[0]) == error.exit_code


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("DONE", 0),
        ("RETRYABLE", 1),
        ("CHECKPOINTED", 75),
        ("BAD_INPUT", 78),
        ("NO_PROGRESS", 93),
        ("BAD_NODE", 94),
        ("BUDGET_STOP", 95),
    ],
)
def test_the_exit_codes_that_schedulers_rely_on_stay(name: str, code: int) -> None:
    assert ExitCode[name] == code
