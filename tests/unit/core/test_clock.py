from hypothesis import given
from hypothesis import strategies as st

from torchrelay.core.clock import iso_time


def test_a_moment_is_shown_in_utc_with_milliseconds() -> None:
    assert iso_time(1_700_000_000.1239) == "2023-11-14T22:13:20.123Z"


@given(st.floats(0, 4e9), st.floats(0, 4e9))
def test_text_sorts_like_time(one_s: float, other_s: float) -> None:
    if one_s <= other_s:
        assert iso_time(one_s) <= iso_time(other_s)
