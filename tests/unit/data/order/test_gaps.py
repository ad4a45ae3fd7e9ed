import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from torchrelay.data.order.gaps import Gap, Gaps, list_ranges

borders = st.integers(0, 60)
ranges = st.lists(st.builds(lambda a, b: Gap(min(a, b), max(a, b)), borders, borders), max_size=6)


@given(gaps=ranges, first=st.integers(0, 30))
def test_kept_slots_are_numbered_on_and_back(gaps: list[Gap], first: int) -> None:
    left_out = {slot for gap in gaps for slot in range(max(first, gap.start), gap.stop)}
    kept = [slot for slot in range(120) if slot not in left_out]
    made = Gaps(gaps, first=first)
    assert made.slots(np.arange(len(kept))).tolist() == kept
    assert made.ranks(np.array(kept)).tolist() == list(range(len(kept)))
    every = np.arange(120)
    assert made.ranks(every).tolist() == [sum(k < slot for k in kept) for slot in range(120)]
    assert made.slot(7) == kept[7]
    assert made.rank(kept[7]) == 7


def test_overlapping_touching_and_empty_ranges_become_one_list() -> None:
    gaps = [Gap(10, 12), Gap(3, 3), Gap(12, 20), Gap(15, 17), Gap(30, 31)]
    assert Gaps(gaps).ranges == (Gap(10, 20), Gap(30, 31))
    assert Gaps(gaps, first=16).ranges == (Gap(16, 20), Gap(30, 31))
    assert Gaps(gaps, first=31).ranges == ()


def test_slots_are_written_as_the_recipe_reads_them() -> None:
    assert list_ranges([7, 3, 4, 12, 4]) == ["3..5", "7..8", "12..13"]
    assert list_ranges([]) == []
