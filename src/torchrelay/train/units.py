"""A step's micro-batches as fixed logical units, and who runs which. Pure.

Unit u of a step covers the samples [u·m, (u+1)·m) of the global batch, m = micro-batch size. The
units are the same whatever the number of processes; processes own runs of neighbouring units,
as equally many as can be. Randomness inside the model belongs to the unit.

Where samples differ in length (`group_by_length`) the units of a step are instead made of samples of
like length, the longest first, and dealt out in turn: all processes work them out from the lengths of
the whole global batch, so they are again the same whatever the number of processes.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from torchrelay.core.errors import RecipeError
from torchrelay.data.readings.rows import Ints, padded_length

_MASK = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Share:
    """The units one rank runs in every step."""

    first: int
    """Its first unit."""
    count: int
    """How many units it owns; may be fewer than `rounds`."""
    rounds: int
    """Units every rank runs, so that all take part in every exchange."""


class Grouping(NamedTuple):
    """How samples of like length are put together."""

    rows: int
    """Samples of a unit, where `positions` is None."""
    positions: int | None
    """Most positions of a unit, its padding included; at least those of the longest sample."""
    longest: int
    """Longest row that padding may lead to."""


def group_by_length(lengths: Ints, grouping: Grouping) -> list[Ints]:
    """Units as places in the global batch, int64, ascending in each; every place is in one unit.

    Longest samples first, and among equals those that come first. A unit has `rows` samples, or as many
    as keep rows × padded length within `positions`.
    """
    order = np.argsort(-lengths, kind="stable").astype(np.int64)
    units, start = [], 0
    while start < order.size:
        count = grouping.rows
        if grouping.positions is not None:
            row = padded_length(int(lengths[order[start]]), grouping.longest)
            count = max(1, grouping.positions // row)
        units.append(np.sort(order[start : start + count]))
        start += count
    return units


def deal_units(num_units: int, *, rank: int, num_processes: int) -> range:
    """The units of one rank, dealt out in turn: rank 0 has the longest of every round, and never fewer."""
    return range(rank, num_units, num_processes)


def choose_micro_batch(
    wanted: int | str, *, global_batch: int, num_processes: int, settled: int | None
) -> int:
    """Samples of one unit.

    `wanted` is the recipe's value. With "auto": what the run settled on before, or one unit a
    process; cut smaller where that leaves a process without a unit, as little as possible.
    """
    if global_batch < num_processes:
        raise RecipeError(
            f"train.global_batch {global_batch} is smaller than the number of processes {num_processes}",
            hint="use fewer processes or a larger global_batch",
        )
    if isinstance(wanted, int):
        if global_batch // wanted < num_processes:
            fitting = largest_divisor(global_batch, global_batch // num_processes)
            raise RecipeError(
                f"train.global_batch {global_batch} ÷ train.micro_batch {wanted} = {global_batch // wanted} "
                f"micro-batches, too few for {num_processes} processes",
                hint=f"set train.micro_batch to {fitting} or less",
            )
        return wanted
    limit = global_batch // num_processes
    return largest_divisor(settled or global_batch, min(limit, settled or limit))


def largest_divisor(number: int, limit: int) -> int:
    """The largest divisor of `number` that is at most `limit` (≥ 1)."""
    return next(n for n in range(limit, 0, -1) if number % n == 0)


def share_units(num_units: int, *, rank: int, num_processes: int) -> Share:
    """Neighbouring units for one rank; counts differ by at most one, and rank 0 never has fewer.

    (Rank 0's running statistics are the ones that are saved, so it should never run an idle unit.)
    """
    first = -(-rank * num_units // num_processes)
    end = -(-(rank + 1) * num_units // num_processes)
    return Share(first, end - first, math.ceil(num_units / num_processes))


def unit_seed(seed: int, step: int, unit: int) -> int:
    """A 63-bit seed for one unit of one step, by splitmix64's finaliser over all three."""
    x = (seed * 0x9E3779B97F4A7C15 + step * 0xBF58476D1CE4E5B9 + unit * 0x94D049BB133111EB + 1) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return (x ^ (x >> 31)) >> 1
