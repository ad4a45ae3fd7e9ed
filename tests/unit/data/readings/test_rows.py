from hypothesis import given
from hypothesis import strategies as st

from tests.unit.data.readings.support import located
from torchrelay.data.batch import IGNORE_LABEL
from torchrelay.data.readings.rows import IGNORED, ROUNDING, has_masked, padded_length


def test_the_label_that_is_not_predicted_is_the_one_of_batches() -> None:
    assert IGNORED == IGNORE_LABEL


@given(length=st.integers(0, 5000), most=st.integers(1, 5000))
def test_rows_are_padded_as_little_as_can_be(length: int, most: int) -> None:
    length = min(length, most)
    found = padded_length(length, most)
    assert length <= found <= most
    assert found == most or (found % ROUNDING == 0 and found - length < max(ROUNDING, ROUNDING - length + 1))


def test_places_without_a_sample_are_seen() -> None:
    assert not has_masked(located((0, 0), (1, 3)))
    assert has_masked(located((0, 0), (-1, -1)))
