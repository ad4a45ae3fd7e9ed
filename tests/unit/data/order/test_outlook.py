"""The outlook against the order itself, slot by slot."""

from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchrelay.data.order.order import Order, OrderSettings
from torchrelay.data.order.outlook import SlotPattern, first_needs, outlook, pattern_slots

layouts = st.fixed_dictionaries(
    {
        "counts": st.lists(st.integers(0, 12), min_size=1, max_size=24).filter(any),
        "seed": st.integers(0, 2**32),
        "lanes": st.integers(1, 12),
        "window_shards": st.integers(1, 4),
        "shuffle": st.booleans(),
    }
)


def make(layout: dict[str, Any]) -> Order:
    chosen = {key: value for key, value in layout.items() if key != "counts"}
    return Order(layout["counts"], OrderSettings(**chosen))


@st.composite
def patterns(draw: st.DrawFn) -> SlotPattern | None:
    if draw(st.booleans()):
        return None
    batch = draw(st.integers(1, 24))
    first = draw(st.integers(0, batch - 1))
    return SlotPattern(batch, first, draw(st.integers(1, batch - first)))


def windows_of(order: Order, epochs: range, layout: dict[str, Any]) -> dict[tuple[int, int], list[int]]:
    """First slot → last slot of every window, found by walking, for every shard in it."""
    slots = np.arange(epochs.start * order.num_samples, epochs.stop * order.num_samples)
    trace = order.trace(slots)
    spans: dict[tuple[int, ...], list[int]] = defaultdict(list)
    columns = (trace.epochs, trace.lanes, trace.windows, trace.located.shards)
    for slot, epoch, lane, window, shard in zip(
        slots.tolist(), *map(np.ndarray.tolist, columns), strict=True
    ):
        window_key = (epoch, lane, window) if layout["shuffle"] else (epoch, shard, 0)
        spans[window_key].append(slot)
    bounds = {key: (found[0], found[-1]) for key, found in spans.items()}
    uses = defaultdict(list)
    for slot, epoch, lane, window, shard in zip(
        slots.tolist(), *map(np.ndarray.tolist, columns), strict=True
    ):
        window_key = (epoch, lane, window) if layout["shuffle"] else (epoch, shard, 0)
        uses[(shard, bounds[window_key][0])] = [*bounds[window_key]]
        del slot
    return uses


def in_pattern(slot: int, pattern: SlotPattern | None) -> bool:
    return pattern is None or 0 <= slot % pattern.global_batch - pattern.first < pattern.count


@given(layout=layouts, pattern=patterns(), data=st.data())
@settings(max_examples=150, deadline=None)
def test_every_slot_lies_in_a_use_of_its_shard(
    layout: dict[str, Any], pattern: SlotPattern | None, data: st.DataObject
) -> None:
    order = make(layout)
    slot = data.draw(st.integers(0, 3 * order.num_samples))
    horizon = data.draw(st.integers(1, 2 * order.num_samples + 3))
    uses = outlook(order, slot, pattern, horizon)
    assert (np.diff(uses.first) >= 0).all()
    slots = [one for one in range(slot, slot + horizon) if in_pattern(one, pattern)]
    shards = order.trace(np.array(slots, dtype=np.int64)).located.shards if slots else []
    for one, shard in zip(slots, shards, strict=True):
        assert ((uses.shards == shard) & (uses.first <= one) & (uses.last >= one)).any()


@given(layout=layouts, data=st.data())
@settings(max_examples=100, deadline=None)
def test_without_a_pattern_uses_are_exactly_the_windows(layout: dict[str, Any], data: st.DataObject) -> None:
    order = make(layout)
    n = order.num_samples
    slot = data.draw(st.integers(0, 2 * n))
    horizon = data.draw(st.integers(1, 2 * n))
    found = outlook(order, slot, None, horizon)
    expected = windows_of(order, range(slot // n, (slot + horizon) // n + 1), layout)
    if layout["shuffle"]:  # a window holds its shards whether or not a sample of them falls into the lane
        wanted = {
            (shard, first, last)
            for (shard, _), (first, last) in expected.items()
            if last >= slot and first < slot + horizon
        }
        assert wanted <= set(zip(*map(np.ndarray.tolist, found), strict=True))
        assert {use[1:] for use in wanted} == set(zip(found.first.tolist(), found.last.tolist(), strict=True))
    else:
        wanted = {
            (shard, first, last)
            for (shard, first), (_, last) in expected.items()
            if last >= slot and first < slot + horizon
        }
        assert wanted == set(zip(*map(np.ndarray.tolist, found), strict=True))


def test_a_rank_whose_places_fall_into_some_lanes_needs_only_their_shards() -> None:
    order = Order([10] * 64, OrderSettings(seed=3, lanes=8, window_shards=2, shuffle=True))
    whole = outlook(order, 0, None, order.num_samples)
    halves = [outlook(order, 0, SlotPattern(16, first, 4), order.num_samples) for first in (0, 4)]
    assert {len(half.shards) for half in halves} == {len(whole.shards) // 2}
    assert not set(halves[0].shards.tolist()) & set(halves[1].shards.tolist())


def test_a_batch_that_shares_no_divisor_with_the_lanes_touches_them_all() -> None:
    order = Order([10] * 64, OrderSettings(seed=3, lanes=8, window_shards=2, shuffle=True))
    some = outlook(order, 0, SlotPattern(15, 0, 1), order.num_samples)
    assert len(some.shards) == len(outlook(order, 0, None, order.num_samples).shards)


@given(layout=layouts, pattern=patterns(), slot=st.integers(0, 500), count=st.integers(1, 60))
@settings(max_examples=80, deadline=None)
def test_first_needs_are_exact(
    layout: dict[str, Any], pattern: SlotPattern | None, slot: int, count: int
) -> None:
    order = make(layout)
    slots = pattern_slots(pattern, slot, count)
    assert all(one >= slot and in_pattern(one, pattern) for one in slots.tolist())
    assert len(slots) >= min(count, pattern.count if pattern else count)
    expected: dict[int, int] = {}
    for one, shard in zip(slots.tolist(), order.trace(slots).located.shards.tolist(), strict=True):
        expected.setdefault(shard, one)
    assert list(first_needs(order, slots).items()) == list(expected.items())


@pytest.mark.parametrize("shuffle", [True, False])
def test_looking_ahead_leaves_the_order_as_it_was(shuffle: bool) -> None:
    settings = OrderSettings(seed=5, lanes=4, window_shards=2, shuffle=shuffle)
    order, untouched = Order([7] * 16, settings), Order([7] * 16, settings)
    outlook(order, 60, SlotPattern(8, 2, 3), 300)
    slots = np.arange(50, 250)
    assert order.samples(slots).sample_ids.tolist() == untouched.samples(slots).sample_ids.tolist()
