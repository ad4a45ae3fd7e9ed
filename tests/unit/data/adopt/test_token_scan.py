import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchrelay.data.adopt.plan import TokenFacts
from torchrelay.data.adopt.token_scan import TokenScan


def feed(tokens: list[int], cuts: list[int], ends: list[int], facts: TokenFacts) -> TokenScan:
    data = np.array(tokens, "<u2").tobytes()
    scan = TokenScan("u16", np.array(ends, np.int64), facts)
    borders = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    for start, stop in zip(borders, borders[1:], strict=False):
        scan.feed(memoryview(data)[start:stop])
    return scan


@settings(deadline=None)
@given(
    documents=st.lists(st.lists(st.integers(0, 99), max_size=8), min_size=1, max_size=8),
    cuts=st.lists(st.integers(0, 150), max_size=6),
    bad=st.integers(0, 7),
)
def test_ends_are_checked_wherever_the_pieces_are_cut(
    documents: list[list[int]], cuts: list[int], bad: int
) -> None:
    tokens = sum(([*document, 99] for document in documents), [])
    ends = np.cumsum([len(document) + 1 for document in documents]).tolist()
    facts = TokenFacts(vocabulary=100, end_token=99)
    assert feed(tokens, cuts, ends, facts).highest == 99
    if bad < len(documents):
        tokens[ends[bad] - 1] = 7
        with pytest.raises(ValueError, match=rf"document {bad} ends with token 7, not with the end mark 99"):
            feed(tokens, cuts, ends, facts)


@settings(deadline=None)
@given(
    tokens=st.lists(st.integers(0, 9), max_size=30),
    place=st.integers(0, 30),
    cuts=st.lists(st.integers(0, 60)),
)
def test_a_token_beyond_the_vocabulary_is_named_with_its_byte(
    tokens: list[int], place: int, cuts: list[int]
) -> None:
    tokens.insert(place, 10)
    place = tokens.index(10)
    with pytest.raises(ValueError, match=rf"token {place} \(byte {2 * place}\) is 10, the vocabulary has 10"):
        feed(tokens, cuts, [], TokenFacts(vocabulary=10))
