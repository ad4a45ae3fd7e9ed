import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchrelay.core.units import (
    Every,
    format_bytes,
    format_count,
    format_seconds,
    parse_bytes,
    parse_every,
    parse_fraction,
    parse_seconds,
    write_seconds,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("64MiB", 64 * 2**20),
        ("64MB", 64 * 10**6),
        ("1.5 GiB", 3 * 2**29),
        (" 10 kb ", 10_000),
        ("1_000", 1000),
        (512, 512),
        ("0", 0),
    ],
)
def test_sizes_are_read_as_people_write_them(text: str | int, expected: int) -> None:
    assert parse_bytes(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("30s", 30), ("10min", 600), ("10 m", 600), ("2h", 7200), ("1.5 d", 129600), ("250ms", 0.25), (7, 7.0)],
)
def test_durations_are_read_as_people_write_them(text: str | int, expected: float) -> None:
    assert parse_seconds(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("500 steps", Every(500, "steps")),
        ("1 step", Every(1, "steps")),
        (20, Every(20, "steps")),
        ("10min", Every(600, "seconds")),
        ("0.5 s", Every(0.5, "seconds")),
    ],
)
def test_intervals_count_steps_or_time(text: str | int, expected: Every) -> None:
    assert parse_every(text) == expected


@pytest.mark.parametrize(("text", "expected"), [("10%", 0.1), (0.25, 0.25), ("1", 1.0), ("0%", 0.0)])
def test_shares_are_percent_or_a_number(text: str | float, expected: float) -> None:
    assert parse_fraction(text) == pytest.approx(expected)


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "abc",
        "10 parsecs",
        "-5",
        -5,
        True,
        None,
        [500, "steps"],
        {},
        float("nan"),
        float("inf"),
        "9" * 400,
    ],
)
@pytest.mark.parametrize("parse", [parse_bytes, parse_seconds, parse_every, parse_fraction])
def test_what_is_no_quantity_is_refused_with_an_example(parse, wrong: object) -> None:
    with pytest.raises(ValueError, match="write"):
        parse(wrong)


@pytest.mark.parametrize("wrong", [0, "0 steps", "0s", "1.5 steps", 1.5])
def test_an_interval_is_positive_and_its_steps_are_whole(wrong: object) -> None:
    with pytest.raises(ValueError, match="not positive|whole number"):
        parse_every(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [1.01, "101%", "5s"])
def test_a_share_is_at_most_the_whole(wrong: object) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        parse_fraction(wrong)  # type: ignore[arg-type]


@given(st.floats(min_value=0, max_value=1e20))
def test_a_written_duration_is_read_back_exactly(seconds: float) -> None:
    assert parse_seconds(write_seconds(seconds)) == seconds


@given(
    st.builds(Every, st.integers(1, 10**15).map(float), st.just("steps"))
    | st.builds(Every, st.floats(min_value=1e-3, max_value=1e9), st.just("seconds"))
)
def test_a_written_interval_is_read_back_exactly(every: Every) -> None:
    assert parse_every(str(every)) == every


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.50 KiB"),
        (1010 * 1024, "1010 KiB"),
        (3 * 2**29, "1.50 GiB"),
        (150 * 2**20, "150 MiB"),
        (5000 * 2**40, "5000 TiB"),
    ],
)
def test_bytes_are_shown_with_three_digits(count: int, expected: str) -> None:
    assert format_bytes(count) == expected


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (0, "0"),
        (999, "999"),
        (999.9, "1.00 k"),
        (1_240_000, "1.24 M"),
        (999_999, "1.00 M"),
        (4.05e11, "405 G"),
    ],
)
def test_counts_are_shown_with_three_digits(count: float, expected: str) -> None:
    assert format_count(count) == expected


@given(st.floats(min_value=0, max_value=1e15))
def test_no_exponent_is_ever_shown(count: float) -> None:
    assert "e" not in (format_bytes(count) + format_count(count)).replace("Ti", "")


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (3.21, "3.2 s"),
        (9.97, "10 s"),
        (59.4, "59 s"),
        (59.7, "1 min 00 s"),
        (245, "4 min 05 s"),
        (7380, "2 h 03 min"),
        (3 * 86400 + 7200, "3 d 02 h"),
    ],
)
def test_durations_are_shown_for_people(seconds: float, expected: str) -> None:
    assert format_seconds(seconds) == expected
