"""Who goes first, over random folders and plans."""

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from torchrelay.data.cache.victim import Shelved, Uses, choose_victims, seconds_to_next_use

keys = st.integers(0, 15)


@st.composite
def folders(draw: st.DrawFn) -> Shelved:
    names = draw(st.lists(keys, max_size=12))
    size = len(names)
    numbers = st.integers(1, 100)
    return Shelved(
        np.array(names, dtype=np.uint64),
        np.array(draw(st.lists(numbers, min_size=size, max_size=size)), dtype=np.int64),
        np.array(draw(st.lists(numbers, min_size=size, max_size=size)), dtype=np.float64),
        np.array(draw(st.lists(st.booleans(), min_size=size, max_size=size)), dtype=np.bool_),
    )


@st.composite
def plans(draw: st.DrawFn) -> Uses:
    raw = draw(st.lists(st.tuples(keys, st.integers(0, 50), st.integers(0, 9)), max_size=12))
    rows = sorted((key, first, first + length) for key, first, length in raw)
    columns = np.array(rows, dtype=np.int64).reshape(len(rows), 3).T
    now, speed = draw(st.integers(0, 50)), draw(st.sampled_from([0.5, 1.0, 4.0]))
    return Uses(columns[0].astype(np.uint64), columns[1], columns[2], now, speed)


def next_use(key: int, coming: list[Uses]) -> float:
    """The same by walking."""
    nearest = math.inf
    for plan in coming:
        rows = zip(plan.keys.tolist(), plan.first.tolist(), plan.last.tolist(), strict=True)
        found = [(first, last) for name, first, last in rows if name == key and last >= plan.now]
        if found:
            first, last = found[0]
            slots = first - plan.now if first > plan.now else plan.now - last
            nearest = min(nearest, slots / plan.slots_per_s)
    return nearest


@given(files=folders(), coming=st.lists(plans(), max_size=3))
@settings(max_examples=100, deadline=None)
def test_the_next_use_is_the_nearest_of_all_plans(files: Shelved, coming: list[Uses]) -> None:
    expected = [next_use(key, coming) for key in files.keys.tolist()]
    assert seconds_to_next_use(files.keys, coming).tolist() == expected


@given(
    files=folders(),
    coming=st.lists(plans(), max_size=3),
    needed=st.integers(0, 400),
    due_s=st.sampled_from([-math.inf, 0.0, 1.0, 7.5, 30.0]),
)
@settings(max_examples=150, deadline=None)
def test_what_is_needed_last_goes_and_it_suffices(
    files: Shelved, coming: list[Uses], needed: int, due_s: float
) -> None:
    choice = choose_victims(files, coming, needed, due_s=due_s)
    when = [next_use(key, coming) for key in files.keys.tolist()]
    able = [n for n in range(files.keys.size) if not files.in_use[n] and when[n] > due_s]
    total = sum(int(files.sizes[n]) for n in able)
    victims = choice.victims.tolist()
    assert choice.missing == max(0, needed - total)
    assert set(victims) <= set(able) and len(set(victims)) == len(victims)
    if choice.missing or needed == 0:
        assert victims == []
        return
    sizes = [int(files.sizes[n]) for n in victims]
    assert sum(sizes) >= needed > sum(sizes[:-1])
    rank = [(-when[n], float(files.used_s[n])) for n in range(files.keys.size)]
    assert max(rank[n] for n in victims) <= min(
        (rank[n] for n in able if n not in victims), default=(math.inf, 0)
    )
    assert [rank[n] for n in victims] == sorted(rank[n] for n in victims)


def test_unneeded_shards_go_by_age_before_all_that_is_needed() -> None:
    files = Shelved(
        np.array([1, 2, 3, 4], dtype=np.uint64),
        np.array([10, 10, 10, 10]),
        np.array([5.0, 90.0, 70.0, 80.0]),
        np.zeros(4, dtype=np.bool_),
    )
    plan = Uses(np.array([1], dtype=np.uint64), np.array([1000]), np.array([1001]), 0, 1.0)
    assert choose_victims(files, [plan], 25).victims.tolist() == [2, 3, 1]
    assert choose_victims(files, [plan], 31).victims.tolist() == [2, 3, 1, 0]
    assert choose_victims(files, [plan], 31, due_s=1000.0).missing == 1
