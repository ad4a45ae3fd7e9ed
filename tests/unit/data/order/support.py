"""Runs on datasets that are only sizes: whichever ranks there are, and whatever is cut or changed."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np

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
        positions = [itinerary.course.position(step * leg.batch) for _, itinerary in ranks]
        assert all(position == positions[0] for position in positions)
        saved = through_checkpoint(positions[0])
    assert saved is not None
    return ids, saved
