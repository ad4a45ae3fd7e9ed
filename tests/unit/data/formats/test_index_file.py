import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchrelay.data.formats.index_file import parse_index, write_index


@settings(deadline=None)
@given(
    header=st.dictionaries(st.text(max_size=5), st.integers() | st.text(), max_size=4),
    numbers=st.lists(st.integers(0, 2**64 - 1), max_size=9),
)
def test_an_index_survives_being_written(header: dict[str, object], numbers: list[int]) -> None:
    data = write_index(header, np.array(numbers, np.uint64))
    assert len(data) % 8 == 0
    index = parse_index(data)
    assert (index.header, index.numbers.tolist()) == (header, numbers)


GOOD = write_index({"a": 1}, np.arange(3, dtype=np.uint64))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (None, "names no index file"),
        (b"", "begins with b''"),
        (b"X" + GOOD[1:], "begins with b'XELAYIDX', not with b'RELAYIDX'"),
        (GOOD[:-1], f"index file of {len(GOOD) - 1} bytes is cut off"),
        (GOOD[:15], "index file of 15 bytes is cut off"),
    ],
)
def test_a_broken_index_says_what_is_wrong(data: bytes | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_index(data)
