"""The data of a step for one rank: which samples, in which units, with which weight in the loss."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from torchrelay.core.errors import DataError
from torchrelay.data.ahead import Limits, read_ahead
from torchrelay.data.batch import MicroBatch, pin_batch, split_batch
from torchrelay.data.loader import SplitReader
from torchrelay.data.worker_pool import ATTEMPTS, PoolLimits, WorkerPool
from torchrelay.parallel.engine import Unit
from torchrelay.parallel.world import World
from torchrelay.recipe.data_schema import DataSection
from torchrelay.train.units import Grouping, Share, deal_units, group_by_length, unit_seed

BLOCK_SAMPLES = 256
"""Samples of one rank that are read at once when a step has fewer."""

Slots = NDArray[np.int64]


class StepPlan(NamedTuple):
    """What one rank reads for one step."""

    units: tuple[int, ...]
    """Numbers of its units in the step."""
    slots: tuple[Slots, ...]
    """The samples of each."""
    rounds: int
    """Units every rank runs, so that all take part in every exchange."""
    is_idle: bool
    """Whether the rank has no unit of its own and reads another's, which must not count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """Reads a rank's units, step by step."""

    reader: SplitReader
    world: World
    share: Share
    global_batch: int
    micro_batch: int
    seed: int
    section: DataSection
    """How far to read ahead, with how many workers, and how samples are put together."""
    plans: dict[int, StepPlan] = field(default_factory=dict)
    """Plans of the steps that are read and not yet run, where they follow from lengths."""

    def plan(self, step: int) -> StepPlan:
        """The part of this rank in the update number `step` (from 1)."""
        if self.section.pad == "longest":
            found = self.plans.get(step) or self._plan_by_length(step)
            if found is not None:
                self.plans[step] = found
                return found
        size, share = self.micro_batch, self.share
        start = (step - 1) * self.global_batch + share.first * size
        own = np.arange(start, start + share.count * size, dtype=np.int64)
        slots = tuple(own[u * size : (u + 1) * size] for u in range(share.count))
        return StepPlan(tuple(range(share.first, share.first + share.count)), slots, share.rounds, False)

    def units(self, step: int, batches: Sequence[MicroBatch]) -> tuple[list[Unit], int]:
        """The units to run and the number of targets of the whole step. A collective where counts vary."""
        targets = self._count_targets(batches)
        if targets == 0:
            raise DataError(
                f"step {step} has nothing to predict: all {self.global_batch} samples are empty",
                hint="remove documents of fewer than two tokens",
            )
        numbers, rounds = self._own_units(step)
        weight = self.world.size / targets  # engines average over ranks
        units = [
            # A batch without targets may hold a sample that only stands in for none.
            Unit(batch.tensors, weight if batch.num_targets else 0.0, unit_seed(self.seed, step, number))
            for number, batch in zip(numbers, batches, strict=True)
        ]
        for _ in range(rounds - len(units)):
            # Cloned: a model may change the batch it is given.
            idle = {name: tensor.clone() for name, tensor in batches[0].tensors.items()}
            units.append(Unit(idle, 0.0, units[0].seed))
        return units, targets

    def stream(self, first_step: int, last_step: int) -> Generator[list[MicroBatch]]:
        """Micro-batches of this rank in the steps first…last; close it to end what reads them.

        With `data.prefetch` ≥ 1 a thread reads so many steps ahead, with `data.workers` ≥ 1 other
        processes do. The position is the step's number, so what was read ahead and never used leaves no
        trace. A rank without a unit of its own gets one micro-batch that counts nothing.
        """
        section, steps = self.section, range(first_step, last_step + 1)
        with ExitStack() as stack:
            pool = self._open_pool()
            read = self._read(steps, pool)
            if section.prefetch:
                if self.world.device.type == "cuda":
                    read = _pinned(read)
                limits = Limits(
                    items=section.prefetch,
                    bytes=section.prefetch_bytes,
                    wait_s=(ATTEMPTS + 1) * section.worker_timeout,
                )
                read = read_ahead(read, _step_bytes, limits)
            stack.enter_context(closing(read))
            if pool is not None:
                stack.callback(pool.interrupt)  # first of all: nobody waits for a worker any more
            yield from read

    def _open_pool(self) -> WorkerPool | None:
        section = self.section
        if not section.workers:
            return None
        if self.reader.spec is None:
            raise DataError("other processes cannot open a memory:// store", hint="set data.workers: 0")
        limits = PoolLimits(
            workers=section.workers, timeout_s=section.worker_timeout, bytes=section.prefetch_bytes
        )
        return WorkerPool(self.reader.spec, limits, self.reader.workers)

    def _read(self, steps: range, pool: WorkerPool | None) -> Generator[list[MicroBatch]]:
        """The steps one after the other, in whichever thread asks for them."""
        if pool is not None:
            wanted = (slots for step in steps for slots in self.plan(step).slots)
            with closing(pool.read(wanted)) as batches:
                for step in steps:
                    yield self._gather(self.plan(step), batches)
        elif self.reader.is_uniform:
            yield from self._read_blocks(steps)
        else:
            for step in steps:
                plan = self.plan(step)
                yield self._gather(plan, map(self.reader.read, plan.slots))

    def _gather(self, plan: StepPlan, batches: Iterator[MicroBatch]) -> list[MicroBatch]:
        own = [next(batches) for _ in plan.slots]
        return [_uncounted(batch) for batch in own] if plan.is_idle else own

    def _read_blocks(self, steps: range) -> Generator[list[MicroBatch]]:
        """Several steps in one read where they are small: a read costs per call more than per sample."""
        size, count = self.micro_batch, self.share.count
        block = max(1, BLOCK_SAMPLES // (size * count))
        for start in range(steps.start, steps.stop, block):
            taken = range(start, min(start + block, steps.stop))
            whole = self.reader.read(np.concatenate([s for step in taken for s in self.plan(step).slots]))
            units = split_batch(whole, size)
            for _ in taken:
                yield [next(units) for _ in range(count)]

    def _plan_by_length(self, step: int) -> StepPlan | None:
        """The plan where samples of like length are put together; None where all are alike."""
        start = (step - 1) * self.global_batch
        slots = np.arange(start, start + self.global_batch, dtype=np.int64)
        lengths = self.reader.lengths(slots)
        if lengths is None:
            return None
        section, world = self.section, self.world
        places = group_by_length(
            lengths, Grouping(self.micro_batch, section.batch_tokens, section.sequence_length)
        )
        own = deal_units(len(places), rank=world.rank, num_processes=world.size)
        rounds = -(-len(places) // world.size)
        if not own:  # the last is the shortest
            return StepPlan((len(places) - 1,), (slots[places[-1]],), rounds, True)
        return StepPlan(tuple(own), tuple(slots[places[unit]] for unit in own), rounds, False)

    def _own_units(self, step: int) -> tuple[Sequence[int], int]:
        """Numbers of this rank's units in the step, and the units every rank runs."""
        first, count = self.share.first, self.share.count
        if self.section.pad == "longest":
            plan = self.plan(step)
            self.plans.pop(step, None)
            return plan.units, plan.rounds
        return range(first, first + count), self.share.rounds

    def _count_targets(self, batches: Sequence[MicroBatch]) -> int:
        if self.reader.targets_per_sample is not None:
            return self.reader.targets_per_sample * self.global_batch
        own = torch.tensor([sum(batch.num_targets for batch in batches)], dtype=torch.int64)
        return int(self.world.sum(own).item())


def _uncounted(batch: MicroBatch) -> MicroBatch:
    return replace(batch, num_targets=0, num_tokens=0, sample_ids=batch.sample_ids[:0])


def _step_bytes(batches: Sequence[MicroBatch]) -> int:
    return sum(batch.bytes for batch in batches)


def _pinned(steps: Generator[list[MicroBatch]]) -> Generator[list[MicroBatch]]:
    """The batches in memory that a GPU copies from without waiting."""
    with closing(steps):
        for batches in steps:
            yield [pin_batch(batch) for batch in batches]
