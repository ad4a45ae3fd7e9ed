"""The data of a step for one rank: which samples, in which units, with which weight in the loss."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from torchrelay.core.errors import DataError
from torchrelay.data.batch import MicroBatch
from torchrelay.parallel.engine import Unit
from torchrelay.parallel.world import World
from torchrelay.train.units import Share, unit_seed


class Reader(Protocol):
    """What the loop needs of a split (`torchrelay.data.loader.SplitReader`)."""

    @property
    def num_samples(self) -> int:
        """Samples of one epoch."""

    @property
    def targets_per_sample(self) -> int | None:
        """Loss terms of a sample where all have equally many, else None."""

    def read(self, slots: NDArray[np.int64]) -> MicroBatch:
        """The samples at these slots of the endless order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """Reads a rank's units, step by step."""

    reader: Reader
    world: World
    share: Share
    global_batch: int
    micro_batch: int
    seed: int

    def batches(self, step: int) -> list[MicroBatch]:
        """Micro-batches of this rank in the update number `step` (from 1)."""
        start = (step - 1) * self.global_batch + self.share.first * self.micro_batch
        slots = np.arange(start, start + self.share.count * self.micro_batch, dtype=np.int64)
        size = self.micro_batch
        return [self.reader.read(slots[u * size : (u + 1) * size]) for u in range(self.share.count)]

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
        idle = Unit(batches[0].tensors, 0.0, units[0].seed)
        return units + [idle] * (self.share.rounds - len(units)), targets

    def stream(self, first_step: int, last_step: int) -> Generator[list[MicroBatch]]:
        """`batches` of the steps first…last, read when asked for."""
        for step in range(first_step, last_step + 1):
            yield self.batches(step)

    def _count_targets(self, batches: Sequence[MicroBatch]) -> int:
        if self.reader.targets_per_sample is not None:
            return self.reader.targets_per_sample * self.global_batch
        own = torch.tensor([sum(batch.num_targets for batch in batches)], dtype=torch.int64)
        return int(self.world.sum(own).item())
