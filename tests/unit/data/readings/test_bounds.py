import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from torchrelay.data.readings.bounds import mark_starts, number_documents


@given(st.lists(st.lists(st.booleans(), min_size=7, max_size=7), min_size=1, max_size=4))
def test_positions_and_numbers_start_anew_at_every_mark(marks: list[list[bool]]) -> None:
    bounds = number_documents(np.array(marks))
    for row, positions, documents in zip(marks, bounds.positions, bounds.documents, strict=True):
        position, document = -1, 0
        for place, starts in enumerate(row):
            begins = starts and place > 0
            document += begins
            position = 0 if begins else position + 1
            assert (positions[place], documents[place]) == (position, document)
    assert bounds.positions.dtype == bounds.documents.dtype == np.int64


@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=12),
    start=st.integers(0, 60),
    size=st.integers(1, 20),
)
def test_a_document_begins_after_every_end_mark_in_the_row(lengths: list[int], start: int, size: int) -> None:
    ends = np.cumsum(lengths).astype(np.uint64)
    marks = np.zeros(size, np.bool_)
    mark_starts(ends, start, marks)
    assert np.flatnonzero(marks).tolist() == [int(e) - start for e in ends if start <= e < start + size]
