import pytest

from torchrelay.core.units import parse_every
from torchrelay.train.cadence import is_due


def test_never_is_never() -> None:
    assert not is_due(None, step=100, elapsed_s=1e9)


def test_steps_are_due_at_multiples_whatever_the_time_and_the_attempt() -> None:
    every = parse_every("5 steps")
    assert [step for step in range(1, 21) if is_due(every, step=step, elapsed_s=1e9)] == [5, 10, 15, 20]
    assert is_due(parse_every(1), step=7, elapsed_s=0.0)


@pytest.mark.parametrize(("elapsed_s", "due"), [(0.0, False), (119.9, False), (120.0, True), (500.0, True)])
def test_minutes_are_due_when_they_have_passed(elapsed_s: float, due: bool) -> None:
    assert is_due(parse_every("2min"), step=120, elapsed_s=elapsed_s) is due
