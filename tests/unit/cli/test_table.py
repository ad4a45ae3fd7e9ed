from hypothesis import given
from hypothesis import strategies as st

from torchrelay.cli.table import WIDTH, wrap


def test_a_long_fact_goes_on_under_its_first_line() -> None:
    lines = wrap(" ".join(["word"] * 40)).splitlines()
    assert all(len(line) <= WIDTH for line in lines)
    assert [line[:11] for line in lines[1:]] == [" " * 11] * (len(lines) - 1)
    assert len(lines) == 3


@given(st.lists(st.text("abc-/", min_size=1, max_size=150), max_size=30))
def test_no_word_is_broken(words: list[str]) -> None:
    assert wrap(" ".join(words)).split() == words
