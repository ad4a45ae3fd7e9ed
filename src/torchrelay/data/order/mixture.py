"""Which dataset every place of a mixture is read from, by weight, exactly. Pure; random access.

Places come in blocks. Of the first n blocks every part has its weight's share, give or take less than
one place; within a block the parts are shuffled. A part's places are numbered on, and that number is
the part's own slot: part p is at its own slot q at the (q+1)-th place that is p's.
"""

from collections.abc import Sequence
from fractions import Fraction
from math import lcm
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchrelay.data.order.permutation import make_key, permute

BLOCK = 4096
"""Places of a block. Doubled until the smallest weight has at least one place in every block."""

Ints = NDArray[np.int64]


class Shares(NamedTuple):
    """Where the samples of some places come from; both int64 [places]."""

    parts: Ints
    own: Ints
    """The own slot of the part."""


class _Block(NamedTuple):
    number: int
    shares: Shares


class Mixture:
    """Places 0, 1, … of parts with fixed weights. Safe from several threads."""

    def __init__(self, weights: Sequence[Fraction], key: int) -> None:
        """Weights are above 0 and need no particular sum; the recipe's check sees to it that each is at
        least a millionth of it, so that a block is still computed at once.
        """
        common = lcm(*(weight.denominator for weight in weights))
        scaled = [int(weight * common) for weight in weights]
        self._limits = [sum(scaled[:count]) for count in range(len(scaled) + 1)]
        self._key = key
        self.block = BLOCK
        """Places of a block here."""
        while self.block * min(scaled) < self._limits[-1]:
            self.block *= 2
        self._blocks: tuple[_Block, ...] = ()

    def locate(self, places: Ints) -> Shares:
        """Part and own slot of each place ≥ 0, int64 [n]."""
        if len(self._limits) == 2:
            return Shares(np.zeros_like(places), places)
        numbers, inside = np.divmod(places, self.block)
        found = np.empty((2, places.size), np.int64)
        for number in set(numbers.tolist()):
            chosen = numbers == number
            found[:, chosen] = np.stack(self._block(number).shares)[:, inside[chosen]]
        return Shares(found[0], found[1])

    def counts(self, place: int) -> list[int]:
        """How many of the places below `place` each part has; they sum to `place`."""
        number, inside = divmod(place, self.block)
        whole = self._quotas(number)
        if inside == 0:
            return whole
        parts = self._block(number).shares.parts[:inside]
        rest = np.bincount(parts, minlength=len(whole)).tolist()
        return [before + more for before, more in zip(whole, rest, strict=True)]

    def _quotas(self, blocks: int) -> list[int]:
        """Places of each part in the first `blocks` blocks.

        Differences of rounded cumulative shares: each is within one of the exact share, their sum is
        exact, and none falls, since a part has at least one place a block.
        """
        ends = [blocks * self.block * limit // self._limits[-1] for limit in self._limits]
        return [end - start for start, end in zip(ends, ends[1:], strict=False)]

    def _block(self, number: int) -> _Block:
        for block in self._blocks:
            if block.number == number:
                return block
        block = _Block(number, self._compute(number))
        self._blocks = (*self._blocks[-1:], block)
        return block

    def _compute(self, number: int) -> Shares:
        before, after = self._quotas(number), self._quotas(number + 1)
        counts = np.array(after) - np.array(before)
        size = np.uint64(self.block)
        key = np.uint64(make_key(self._key, number))
        places = np.arange(self.block, dtype=np.uint64)
        images = permute(places, np.full(self.block, size), np.full(self.block, key))
        parts = np.searchsorted(np.cumsum(counts), images.astype(np.int64), side="right")
        own = np.empty(self.block, np.int64)
        firsts = np.repeat(np.array(before) - (np.cumsum(counts) - counts), counts)
        own[np.argsort(parts, kind="stable")] = firsts + np.arange(self.block)
        return Shares(parts.astype(np.int64), own)
