"""The data of a step for one rank: which samples, in which units, with which weight in the loss."""

from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from torchrelay.core.errors import DataError
from torchrelay.data.batch import MicroBatch, split_batch
from torchrelay.data.loader import SplitReader, read_ahead
from torchrelay.parallel.engine import Unit
from torchrelay.parallel.world import World
from torchrelay.train.units import Share, unit_seed

BLOCK_SAMPLES = 256
"""Samples of one rank that are read at once when a step has fewer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """Reads a rank's units, step by step."""

    reader: SplitReader
    world: World
    share: Share
    global_batch: int
    micro_batch: int
    seed: int
    prefetch: int
    """Steps read ahead by a thread; 0 for none."""

    def slots(self, step: int) -> list[NDArray[np.int64]]:
        """Slots of this rank's micro-batches in the update number `step` (from 1)."""
        size = self.micro_batch
        start = (step - 1) * self.global_batch + self.share.first * size
        own = np.arange(start, start + self.share.count * size, dtype=np.int64)
        return [own[u * size : (u + 1) * size] for u in range(self.share.count)]

    def units(self, step: int, batches: Sequence[MicroBatch]) -> tuple[list[Unit], int]:
        """The units to run and the number of targets of the whole step. A collective where counts vary."""
        targets = self._count_targets(batches)
        if targets == 0:
            raise DataError(
                f"step {step} has nothing to predict: all {self.global_batch} samples are empty",
                hint="remove documents of fewer than two tokens",
            )
        weight = self.world.size / targets  # engines average over ranks
        units = [
            Unit(batch.tensors, weight, unit_seed(self.seed, step, self.share.first + index))
            for index, batch in enumerate(batches)
        ]
        for _ in range(self.share.rounds - len(units)):
            # Cloned: a model may change the batch it is given.
            idle = {name: tensor.clone() for name, tensor in batches[0].tensors.items()}
            units.append(Unit(idle, 0.0, units[0].seed))
        return units, targets

    def stream(self, first_step: int, last_step: int) -> Generator[list[MicroBatch]]:
        """Micro-batches of this rank in the steps first…last; close it to end the reading thread.

        With `prefetch` ≥ 1 a thread reads so many steps ahead. The position is the step's number,
        so what was read ahead and never used leaves no trace.
        """
        steps = range(first_step, last_step + 1)
        if self.prefetch:
            yield from self._read_ahead(steps)
        elif self.reader.is_uniform:
            yield from self._read_blocks(steps)
        else:
            for step in steps:
                yield [self.reader.read(slots) for slots in self.slots(step)]

    def _read_ahead(self, steps: range) -> Generator[list[MicroBatch]]:
        wanted = (slots for step in steps for slots in self.slots(step))
        with closing(read_ahead(self.reader, wanted, self.prefetch * self.share.count)) as batches:
            for _ in steps:
                yield [next(batches) for _ in range(self.share.count)]

    def _read_blocks(self, steps: range) -> Generator[list[MicroBatch]]:
        """Several steps in one read where they are small: a read costs per call more than per sample."""
        size, count = self.micro_batch, self.share.count
        block = max(1, BLOCK_SAMPLES // (size * count))
        for start in range(steps.start, steps.stop, block):
            taken = range(start, min(start + block, steps.stop))
            whole = self.reader.read(np.concatenate([slots for step in taken for slots in self.slots(step)]))
            units = split_batch(whole, size)
            for _ in taken:
                yield [next(units) for _ in range(count)]

    def _count_targets(self, batches: Sequence[MicroBatch]) -> int:
        if self.reader.targets_per_sample is not None:
            return self.reader.targets_per_sample * self.global_batch
        own = torch.tensor([sum(batch.num_targets for batch in batches)], dtype=torch.int64)
        return int(self.world.sum(own).item())
