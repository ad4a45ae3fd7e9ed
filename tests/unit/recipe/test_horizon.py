import pytest

from torchrelay.recipe.horizon import Horizon, parse_horizon, parse_range, parse_tokens


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (100, Horizon(100, "steps")),
        ("100 steps", Horizon(100, "steps")),
        ("1 step", Horizon(1, "steps")),
        ("2k", Horizon(2000, "steps")),
        ("2M tokens", Horizon(2_000_000, "tokens")),
        ("1.5 b tokens", Horizon(1_500_000_000, "tokens")),
        ("0", Horizon(0, "steps")),
    ],
)
def test_a_length_is_steps_unless_it_says_tokens(text: int | str, expected: Horizon) -> None:
    assert parse_horizon(text) == expected


@pytest.mark.parametrize("text", [300_000_000, "300M", "300M tokens", "0.3b", "300_000_000"])
def test_tokens_need_not_say_so(text: int | str) -> None:
    assert parse_tokens(text) == Horizon(300_000_000, "tokens")


@pytest.mark.parametrize("text", ["soon", "", "-5", "5 parsecs", "9" * 400, "1e3"])
def test_what_is_no_length_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a length|too long"):
        parse_horizon(text)


def test_tokens_become_whole_steps_rounded_up() -> None:
    assert Horizon(1000, "tokens").steps(300) == 4
    assert Horizon(900, "tokens").steps(300) == 3
    assert Horizon(7, "steps").steps(300) == 7


@pytest.mark.parametrize(
    ("text", "expected"),
    [("12000..12800", (12000, 12800)), (" 1_000 .. 2_000", (1000, 2000)), ("0..1", (0, 1))],
)
def test_a_range_of_slots_has_a_start_and_a_stop(text: str, expected: tuple[int, int]) -> None:
    assert parse_range(text) == expected


@pytest.mark.parametrize("text", ["5", "5..5", "9..3", "-1..4", "1...2", "a..b", "0..99999999999999999"])
def test_what_holds_no_slot_is_no_range(text: str) -> None:
    with pytest.raises(ValueError, match="is not a range of slots|holds no slot"):
        parse_range(text)
