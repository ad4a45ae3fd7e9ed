"""Whatever happens to a run, all its ranks together read the planned order.

A run is cut a few times. At every cut the number of processes may change, the micro-batch, the samples
of a step, the weights of a mixture and what is left out. Every rank has readers of its own and asks
for its units as training does; a cut goes through the position as a checkpoint keeps it.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.checkpoint.support import ALONE
from torchrelay.data.order.course import Change, Course, Plan, begin, resume
from torchrelay.data.order.gaps import Gap
from torchrelay.data.order.history import Source
from torchrelay.data.order.itinerary import Itinerary
from torchrelay.data.order.order import Order, OrderSettings
from torchrelay.data.order.position import DataPosition
from torchrelay.recipe.data_schema import DataSection
from torchrelay.train.feed import Feed
from torchrelay.train.units import share_units

SECTION = DataSection(dataset="d")
Turns = np.ndarray[Any, np.dtype[np.int64]]
Read = Callable[[Itinerary, Turns], list[int]]


class Leg(NamedTuple):
    """What stays the same between two cuts."""

    steps: int
    world: int
    micro_batch: int
    units: int
    weights: tuple[int, ...]
    skip: tuple[Gap, ...] = ()

    @property
    def batch(self) -> int:
        return self.micro_batch * self.units


@dataclass(frozen=True)
class Data:
    """Datasets by their shard sizes, and how they are ordered."""

    counts: Sequence[Sequence[int]]
    seed: int
    lanes: int
    window_shards: int
    shuffle: bool = True
    stop: bool = False

    def orders(self) -> list[Order]:
        values = OrderSettings(
            seed=self.seed, lanes=self.lanes, window_shards=self.window_shards, shuffle=self.shuffle
        )
        return [Order(counts, values) for counts in self.counts]

    def plan(self, leg: Leg) -> Plan:
        sources = [Source(f"d{n}", f"v{n}", sum(counts)) for n, counts in enumerate(self.counts)]
        return Plan(
            seed=self.seed,
            batch=leg.batch,
            sources=tuple(sources),
            changes=(Change(0, tuple(map(float, leg.weights))),),
            skip=leg.skip,
            fills_epochs=self.stop,
            may_add=True,
        )

    def course(self, leg: Leg, saved: DataPosition | None, step: int) -> Course:
        plan = self.plan(leg)
        return begin(plan) if saved is None else resume(plan, saved, step=step)


def through_checkpoint(position: DataPosition) -> DataPosition:
    return DataPosition.from_json(json.loads(json.dumps(asdict(position))))


def read_ids(itinerary: Itinerary, turns: Turns) -> list[int]:
    return [i for i in itinerary.locate(turns).located.sample_ids.tolist() if i >= 0]


def read_one_by_one(itinerary: Itinerary, turns: Turns) -> list[int]:
    return [i for turn in turns for i in read_ids(itinerary, np.array([turn]))]


def run(data: Data, legs: Sequence[Leg], read: Read = read_ids) -> tuple[list[int], DataPosition]:
    """Ids in the order of turns over all ranks, and the last position."""
    ids, saved, step = [], None, 0
    for leg in legs:
        ranks = []
        for rank in range(leg.world):
            itinerary = Itinerary(data.course(leg, saved, step), data.orders())
            share = share_units(leg.units, rank=rank, num_processes=leg.world)
            feed = Feed(
                reader=None,  # type: ignore[arg-type]  # only asked which turns a rank has
                world=replace(ALONE, rank=rank, size=leg.world),
                share=share,
                global_batch=leg.batch,
                micro_batch=leg.micro_batch,
                seed=data.seed,
                section=SECTION,
            )
            ranks.append((feed, itinerary))
        for number in range(step + 1, step + leg.steps + 1):
            ids += [
                i
                for feed, itinerary in ranks
                for unit in feed.plan(number).slots
                for i in read(itinerary, unit)
            ]
        step += leg.steps
        saved = through_checkpoint(ranks[0][1].course.position(step * leg.batch))
    assert saved is not None
    return ids, saved


shards = st.lists(st.sampled_from([0, 1, 1, 2, 7, 20]), min_size=1, max_size=12).filter(any)
gaps = st.lists(st.builds(lambda a, n: Gap(a, a + n), st.integers(0, 250), st.integers(1, 60)), max_size=3)


def datasets(most: int, **fields: Any) -> st.SearchStrategy[Data]:
    return st.builds(
        Data,
        counts=st.lists(shards, min_size=most, max_size=most),
        seed=st.integers(0, 2**63 - 1),
        lanes=st.integers(1, 70),
        window_shards=st.integers(1, 12),
        shuffle=st.booleans(),
        **fields,
    )


@st.composite
def legs(draw: st.DrawFn, parts: int, *, units: int | None = None, skip: bool = False) -> list[Leg]:
    """Legs of one batch size if `units` is given, else each of its own."""
    found = []
    size = draw(st.integers(1, 3))
    for _ in range(draw(st.integers(1, 4))):
        micro_batch = size if units else draw(st.integers(1, 5))
        count = units or draw(st.integers(1, 12))
        found.append(
            Leg(
                steps=draw(st.integers(0, 9)),
                world=draw(st.integers(1, min(8, count))),
                micro_batch=micro_batch,
                units=count,
                weights=(1,) * parts,
                skip=tuple(draw(gaps)) if skip else (),
            )
        )
    return found


def planned(data: Data, count: int, skip: Sequence[Gap] = ()) -> list[int]:
    """The first samples of one dataset in its order, those of some slots left out."""
    slots = [slot for slot in range(3 * count + 700) if not any(g.start <= slot < g.stop for g in skip)]
    ids: list[int] = data.orders()[0].samples(np.array(slots[:count], np.int64)).sample_ids.tolist()
    return ids


@pytest.mark.parametrize("read", [read_ids, read_one_by_one])
@given(data=datasets(1), path=legs(1))
@settings(deadline=None, max_examples=40)
def test_all_ranks_over_all_cuts_read_the_planned_order(read: Read, data: Data, path: list[Leg]) -> None:
    """The samples of a step may differ from leg to leg: each goes on at the slot where the last ended."""
    ids, position = run(data, path, read)
    count = sum(leg.steps * leg.batch for leg in path)
    assert len(ids) == count == position.global_slot
    assert ids == planned(data, count)
    n = sum(data.counts[0])
    for epoch in range(count // n):
        assert sorted(ids[epoch * n : (epoch + 1) * n]) == list(range(n))
    rest = ids[count // n * n :]
    assert len(set(rest)) == len(rest)


@given(data=datasets(1), path=legs(1, skip=True))
@settings(deadline=None, max_examples=40)
def test_what_is_left_out_is_what_the_recipe_of_each_leg_says_of_the_slots_still_to_come(
    data: Data, path: list[Leg]
) -> None:
    ids, position = run(data, path)
    expected: list[int] = []
    slot = 0
    for leg in path:
        left = leg.steps * leg.batch
        while left:
            if not any(gap.start <= slot < gap.stop for gap in leg.skip):
                expected.append(slot)
                left -= 1
            slot = slot + 1
        slot = expected[-1] + 1 if expected else 0
    assert position.global_slot == slot
    assert ids == data.orders()[0].samples(np.array(expected, np.int64)).sample_ids.tolist()


@given(data=datasets(1, stop=st.just(True)), path=legs(1, units=8))
@settings(deadline=None, max_examples=40)
def test_epochs_that_end_with_a_step_lose_and_repeat_nothing(data: Data, path: list[Leg]) -> None:
    ids, position = run(data, path)
    n, batch = sum(data.counts[0]), path[0].batch
    steps = sum(leg.steps for leg in path)
    epochs, rest = divmod(steps, -(-n // batch))
    assert len(ids) == epochs * n + rest * batch == position.global_slot
    assert ids == planned(data, len(ids))


@given(data=datasets(3), path=legs(3, skip=False), drawn=st.data())
@settings(deadline=None, max_examples=12)
def test_a_mixture_reads_every_part_in_its_own_order_over_all_cuts(
    data: Data, path: list[Leg], drawn: st.DataObject
) -> None:
    weights = st.tuples(*[st.integers(0, 4)] * 3).filter(any)
    path = [leg._replace(weights=drawn.draw(weights)) for leg in path]
    ids, position = run(data, path)
    alone = [leg._replace(world=1, micro_batch=1, units=leg.batch) for leg in path]
    assert (ids, position) == run(data, alone)
    base = 0
    for order in data.orders():
        own = [i - base for i in ids if base <= i < base + order.num_samples]
        assert own == order.samples(np.arange(len(own))).sample_ids.tolist()
        base += order.num_samples
    assert len(ids) == position.global_slot


@given(data=datasets(2), path=legs(2, units=6, skip=False), skip=gaps.map(tuple))
@settings(deadline=None, max_examples=12)
def test_cuts_change_nothing_in_a_mixture_with_slots_left_out(
    data: Data, path: list[Leg], skip: tuple[Gap, ...]
) -> None:
    cut = [leg._replace(weights=(1, 3), skip=skip) for leg in path]
    whole = cut[0]._replace(steps=sum(leg.steps for leg in cut), world=1)
    assert run(data, cut) == run(data, [whole])
    sources = [Source(f"d{n}", f"v{n}", sum(counts)) for n, counts in enumerate(data.counts)]
    assert len({part.base for part in run(data, cut)[1].segments[-1].parts}) == len(sources)
