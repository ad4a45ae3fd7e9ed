"""Measure the validation split exactly: every sample once, whatever the number of processes."""

import math
import time
from dataclasses import dataclass

import numpy as np
import torch

from torchrelay.data.batch import MicroBatch
from torchrelay.data.loader import SplitReader
from torchrelay.parallel.engine import Engine
from torchrelay.parallel.world import World


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A validation result, the same on every rank."""

    loss: float
    """Mean over all targets, in nats."""
    samples: int
    targets: int
    seconds: float


def measure(engine: Engine, world: World, reader: SplitReader, *, samples: int, batch: int) -> Measured:
    """Mean loss over the first `samples` samples, `batch` a forward pass. A collective.

    Batches are dealt out in turn; a rank without one runs its last again with weight 0, since
    engines need every rank in every pass. Summed in float64.
    """
    begun = time.perf_counter()
    engine.module.eval()
    starts = range(0, samples, batch)
    sums = torch.zeros(2, dtype=torch.float64)
    for turn in range(math.ceil(len(starts) / world.size)):
        index = turn * world.size + world.rank
        counts = index < len(starts)
        read = _read(reader, starts[index] if counts else 0, batch, samples)
        loss = engine.loss(read.tensors)
        if counts:
            sums += torch.tensor([float(loss), read.num_targets], dtype=torch.float64)
    engine.module.train()
    loss_sum, targets = world.sum(sums).tolist()
    return Measured(
        loss=loss_sum / max(1.0, targets),
        samples=samples,
        targets=int(targets),
        seconds=time.perf_counter() - begun,
    )


def _read(reader: SplitReader, start: int, batch: int, samples: int) -> MicroBatch:
    return reader.read(np.arange(start, min(start + batch, samples), dtype=np.int64))
