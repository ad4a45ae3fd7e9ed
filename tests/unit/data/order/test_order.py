"""The order may never change silently: see the pinned values at the end."""

import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchrelay.core.errors import DataError
from torchrelay.data.order import order as order_module
from torchrelay.data.order.order import (
    BLOCK_SLOTS,
    ORDER_VERSION,
    Order,
    OrderSettings,
    choose_lanes,
    cut_windows,
)


def make(
    counts: Sequence[int], *, seed: int = 1, lanes: int = 4, window_shards: int = 2, shuffle: bool = True
) -> Order:
    return Order(counts, OrderSettings(seed=seed, lanes=lanes, window_shards=window_shards, shuffle=shuffle))


def ids(order: Order, start: int, stop: int) -> list[int]:
    found: list[int] = order.samples(np.arange(start, stop, dtype=np.int64)).sample_ids.tolist()
    return found


layouts = st.fixed_dictionaries(
    {
        "counts": st.lists(st.integers(0, 40), min_size=1, max_size=30).filter(any),
        "seed": st.integers(0, 2**63 - 1),
        "lanes": st.integers(1, 70),
        "window_shards": st.integers(1, 12),
    }
)


@given(layout=layouts, epoch=st.integers(0, 10**9))
@settings(max_examples=80, deadline=None)
def test_an_epoch_holds_every_sample_exactly_once(layout: dict[str, Any], epoch: int) -> None:
    order = make(**layout)
    n = order.num_samples
    assert n == sum(layout["counts"])
    assert sorted(ids(order, epoch * n, (epoch + 1) * n)) == list(range(n))


@given(layout=layouts, slots=st.lists(st.integers(0, 10**12), min_size=1, max_size=30))
@settings(max_examples=100, deadline=None)
def test_any_slots_in_any_company_give_the_same_samples(layout: dict[str, Any], slots: list[int]) -> None:
    together = make(**layout).samples(np.array(slots)).sample_ids.tolist()
    alone = [ids(make(**layout), slot, slot + 1)[0] for slot in slots]
    assert together == alone


@given(layout=layouts)
@settings(max_examples=50, deadline=None)
def test_shard_and_index_say_where_the_sample_is(layout: dict[str, Any]) -> None:
    order = make(**layout)
    found = order.samples(np.arange(order.num_samples))
    counts = np.array(layout["counts"])
    bases = np.concatenate([[0], np.cumsum(counts)])
    assert (found.indexes >= 0).all() and (found.indexes < counts[found.shards]).all()
    assert (bases[found.shards] + found.indexes == found.sample_ids).all()


@given(layout=layouts)
@settings(max_examples=50, deadline=None)
def test_slots_of_a_lane_are_every_c_th_and_windows_come_one_after_the_other(layout: dict[str, Any]) -> None:
    order = make(**layout)
    trace = order.trace(np.arange(order.num_samples))
    assert (trace.lanes == np.arange(order.num_samples) % order.lanes).all()
    for lane in range(min(order.lanes, order.num_samples)):
        windows = trace.windows[trace.lanes == lane]
        assert (np.diff(windows) >= 0).all()
        assert len(windows) == -(-(order.num_samples - lane) // order.lanes)
        for window in set(windows.tolist()):
            chosen = (trace.lanes == lane) & (trace.windows == window)
            assert len(set(trace.located.shards[chosen].tolist())) <= max(2, 1.5 * order.window_shards)


@given(st.integers(1, 400), st.integers(1, 30))
def test_windows_cover_a_lane_without_a_rest(count: int, window_shards: int) -> None:
    offsets, counts = np.arange(count), np.full(count, count)
    numbers, first, end = cut_windows(offsets, counts, window_shards)
    assert ((first <= offsets) & (offsets < end)).all()
    sizes = [int((numbers == number).sum()) for number in range(int(numbers[-1]) + 1)]
    assert sum(sizes) == count and max(sizes) - min(sizes) <= 1
    assert (end - first == np.array(sizes)[numbers]).all()
    assert len(sizes) == max(1, int(count / window_shards + 0.5))


def test_epochs_differ_from_each_other_and_between_seeds() -> None:
    order = make([100] * 8)
    first, second = ids(order, 0, 800), ids(order, 800, 1600)
    assert first != second
    assert sum(a == b for a, b in zip(first, second, strict=True)) < 20
    assert ids(make([100] * 8, seed=2), 0, 800) != first


def test_shard_order_differs_between_epochs() -> None:
    order = make([10] * 40, lanes=1, window_shards=1)
    shards = order.trace(np.arange(800)).located.shards.tolist()
    first, second = list(dict.fromkeys(shards[:400])), list(dict.fromkeys(shards[400:]))
    assert sorted(first) == sorted(second) == list(range(40))
    assert first != second


@pytest.mark.parametrize("first_worlds", [1, 2, 3, 4])
@pytest.mark.parametrize("second_worlds", [1, 2, 3, 4])
def test_changing_the_number_of_processes_repeats_and_loses_nothing(
    first_worlds: int, second_worlds: int
) -> None:
    """Every rank has its own order object; a step is 12 samples, split in near-equal runs."""
    counts, steps_before, steps_after, global_batch = [33, 50, 7, 61], 9, 30, 12

    def run(world: int, steps: range) -> list[list[int]]:
        ranks = [make(counts) for _ in range(world)]
        read: list[list[int]] = []
        for step in steps:
            slots = np.arange(step * global_batch, (step + 1) * global_batch)
            parts = np.array_split(slots, world)
            read.append(
                [i for rank, part in zip(ranks, parts, strict=True) for i in rank.samples(part).sample_ids]
            )
        return read

    mixed = run(first_worlds, range(steps_before)) + run(
        second_worlds, range(steps_before, steps_before + steps_after)
    )
    assert mixed == run(1, range(steps_before + steps_after))
    n = sum(counts)
    flat = [sample for step in mixed for sample in step]
    assert set(Counter(flat[:n]).values()) == {1} and len(set(flat[:n])) == n
    assert set(Counter(flat[n : 2 * n]).values()) == {1}


@given(slot=st.integers(0, 5000), span=st.integers(1, 40))
@settings(max_examples=60, deadline=None)
def test_resuming_anywhere_goes_on_as_if_never_stopped(slot: int, span: int) -> None:
    running = make([300, 200, 100])
    for earlier in range(max(0, slot - 10), slot):
        ids(running, earlier, earlier + 5)
    assert ids(running, slot, slot + span) == ids(make([300, 200, 100]), slot, slot + span)


def test_without_shuffle_samples_come_as_they_are_stored_epoch_after_epoch() -> None:
    order = make([3, 0, 4], shuffle=False)
    assert ids(order, 0, 16) == [0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3, 4, 5, 6, 0, 1]
    assert order.samples(np.array([2, 3])).shards.tolist() == [0, 2]


def test_a_late_slot_costs_what_an_early_one_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    work: list[int] = []

    def counting(function: Any) -> Any:
        def count(*arrays: Any) -> Any:
            work.append(sum(np.size(array) for array in arrays))
            return function(*arrays)

        return count

    for name in ("permute", "mix", "_find"):
        monkeypatch.setattr(order_module, name, counting(getattr(order_module, name)))
    costs = []
    for slot in (1000, 10**10 + 1000 - 10**10 % 100_000, 10**15 + 1000 - 10**15 % 100_000):
        order = make([1000] * 100)
        work.clear()
        order.samples(np.arange(slot, slot + 4))
        costs.append(sum(work))
    assert len(set(costs)) == 1
    assert costs[0] < 40 * BLOCK_SLOTS


def test_following_steps_are_served_from_one_block(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr(
        order_module, "permute", lambda x, n, k: calls.append(x.size) or x
    )  # identity is a permutation too
    order = make([10_000])
    for step in range(BLOCK_SLOTS // 4):
        order.samples(np.arange(step * 4, step * 4 + 4))
    assert calls == [BLOCK_SLOTS]


def test_only_two_epochs_are_kept() -> None:
    order = make([50] * 5)
    for epoch in range(10):
        ids(order, epoch * 250, epoch * 250 + 250)
    assert len(order._layouts) == 2


def test_a_request_may_span_many_short_epochs() -> None:
    order = make([2, 1])
    assert all(sorted(ids(order, 3 * e, 3 * e + 3)) == [0, 1, 2] for e in range(20))
    assert sorted(ids(order, 0, 60)) == sorted([0, 1, 2] * 20)


def test_a_rank_reads_whole_lanes_and_touches_few_shards() -> None:
    """64 shards, 16 lanes in use, 4 ranks of 4 lanes each: about a quarter of the shards each."""
    order = make([64] * 64, lanes=16, window_shards=4)
    assert order.lanes == 16
    slots = np.arange(order.num_samples).reshape(-1, 4, 4)
    for rank in range(4):
        shards = set(order.samples(slots[:, rank].ravel()).shards.tolist())
        assert len(shards) <= 64 / 4 + 1


def test_few_shards_are_open_at_a_time() -> None:
    order = make([100] * 100, lanes=5, window_shards=4)
    shards = order.samples(np.arange(order.num_samples)).shards.reshape(-1, 50)
    assert max(len(set(chunk.tolist())) for chunk in shards) <= 2 * 5 * (4 + 1)


@pytest.mark.parametrize(
    ("lanes", "window_shards", "shards", "chosen"),
    [(64, 10, 1, 1), (64, 10, 639, 32), (64, 10, 640, 64), (64, 10, 10**6, 64), (6, 1, 4, 3), (7, 1, 6, 1)],
)
def test_small_datasets_get_fewer_lanes(lanes: int, window_shards: int, shards: int, chosen: int) -> None:
    assert choose_lanes(lanes, window_shards, shards) == chosen


def test_one_shard_is_shuffled_as_a_whole() -> None:
    found = np.array(ids(make([10_000], lanes=64, window_shards=10), 0, 10_000))
    assert abs(float(np.corrcoef(np.arange(10_000), found)[0, 1])) < 0.05
    batches = found[:9600].reshape(-1, 12)
    assert abs(float(batches.mean()) - 5000) < 150
    assert float(batches.std(axis=1).mean()) > 2600  # a batch comes from everywhere (uniform: 2887)


def test_negative_slots_are_refused() -> None:
    with pytest.raises(ValueError, match="slot -1 is negative"):
        make([10]).samples(np.array([3, -1]))


def test_no_samples_are_refused() -> None:
    with pytest.raises(DataError, match="no sample"):
        make([0, 0])


def test_no_slots_give_no_samples() -> None:
    assert make([10]).samples(np.array([], np.int64)).sample_ids.tolist() == []


# Values of ORDER_VERSION 2. A change here breaks the resume of every run: it needs a new ORDER_VERSION.
PINNED = [
    ([10], 1, 64, 10, 0, [2, 4, 7, 5, 0, 9, 6, 3, 8, 1]),
    ([5, 0, 7, 3], 2**63 - 1, 2, 1, 10**10, [1, 11, 2, 7, 0, 10, 3, 5, 4, 7]),
    (
        [1000] * 50,
        7,
        8,
        3,
        49_995,
        [18499, 27604, 2006, 9400, 33190, 45899, 10366, 29721, 20405, 17287],
    ),
    (
        [15_000] * 2000,
        12345,
        64,
        10,
        3 * 10**9 + 7,
        [24256589, 25001780, 28311047, 14617439, 13883550, 28617112, 16964926, 2512623, 15015690, 18342179],
    ),
]


@pytest.mark.parametrize(("counts", "seed", "lanes", "window_shards", "start", "expected"), PINNED)
def test_the_order_is_the_one_that_runs_were_started_with(
    counts: list[int], seed: int, lanes: int, window_shards: int, start: int, expected: list[int]
) -> None:
    assert ORDER_VERSION == 2
    order = make(counts, seed=seed, lanes=lanes, window_shards=window_shards)
    assert ids(order, start, start + len(expected)) == expected


def test_two_whole_epochs_hash_to_the_pinned_value() -> None:
    order = make([1000] * 50, seed=7, lanes=8, window_shards=3)
    digest = hashlib.sha256(np.array(ids(order, 0, 100_000), "<i8").tobytes()).hexdigest()
    assert digest == "3170d0c5461b91462b28f162eaec50df65af7e041771e98525e6228c677bfa09"


@pytest.mark.parametrize("shards", [1, 3, 30, 63, 64])
def test_what_fits_into_the_open_windows_is_one_window(shards: int) -> None:
    order = make([20] * shards, lanes=16, window_shards=4)
    assert order.trace(np.arange(order.num_samples)).windows.max() == 0


def test_a_larger_dataset_is_read_in_windows() -> None:
    order = make([20] * 200, lanes=16, window_shards=4)
    assert order.trace(np.arange(order.num_samples)).windows.max() == 2
