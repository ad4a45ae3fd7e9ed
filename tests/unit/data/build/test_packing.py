import time

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from torchrelay.data.build.packing import fill_ratio, pack_documents


def packs_of(lengths: list[int], capacity: int) -> list[list[int]]:
    packs = pack_documents(lengths, capacity)
    return [part.tolist() for part in np.split(packs.order, packs.ends[:-1])] if len(packs.ends) else []


lists = st.lists(st.integers(1, 50), max_size=60)


@given(lengths=lists, capacity=st.integers(50, 120))
def test_every_document_is_in_one_pack_and_no_pack_is_too_long(lengths: list[int], capacity: int) -> None:
    packs = packs_of(lengths, capacity)
    assert sorted(document for pack in packs for document in pack) == list(range(len(lengths)))
    assert all(pack and sum(lengths[document] for document in pack) <= capacity for pack in packs)
    assert packs == sorted(packs) and all(pack == sorted(pack) for pack in packs)


def place_one_by_one(lengths: list[int], capacity: int) -> int:
    """Best fit, longest first, as a book writes it."""
    rooms: list[int] = []
    for length in sorted(lengths, reverse=True):
        fitting = [room for room in rooms if room >= length]
        if fitting:
            rooms.remove(min(fitting))
        rooms.append((min(fitting) if fitting else capacity) - length)
    return len(rooms)


@given(lengths=lists, capacity=st.integers(50, 120))
@settings(max_examples=200)
def test_it_is_best_fit_longest_first(lengths: list[int], capacity: int) -> None:
    assert len(packs_of(lengths, capacity)) == place_one_by_one(lengths, capacity)


def test_the_plan_is_pinned() -> None:
    assert packs_of([6, 5, 4, 3, 2, 10, 1], 10) == [[0, 2], [1, 3, 4], [5], [6]]


def test_a_shard_of_short_documents_is_packed_quickly_and_fully() -> None:
    lengths = np.random.default_rng(1).integers(20, 3000, 40_000).tolist()
    started = time.perf_counter()
    packs = packs_of(lengths, 4096)
    assert time.perf_counter() - started < 5
    assert fill_ratio(lengths, len(packs), 4096) > 0.99


def test_the_fill_ratio_of_nothing_is_full() -> None:
    assert fill_ratio([], 0, 10) == 1.0
    assert fill_ratio([5, 6], 2, 10) == 0.55
