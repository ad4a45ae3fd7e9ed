"""What every reading gives, and the contract of a reading."""

from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from torchrelay.data.order.order import Located

IGNORED = -100
"""Label of a position that is not predicted; `batch.IGNORE_LABEL`, which lies beyond torch."""
ROUNDING = 8
"""Rows that are padded to their longest are padded to a multiple of this."""

Ints = NDArray[np.int64]


class Rows(NamedTuple):
    """The samples of one micro-batch; see `batch.MicroBatch` for the arrays."""

    arrays: dict[str, NDArray[Any]]
    num_targets: int
    num_tokens: int


class Reading(Protocol):
    """Turns located samples into arrays.

    A place whose index is -1 holds no sample: it adds nothing to the targets, the tokens or the loss.
    Readings of text give a row of zeros with ignored labels for it, so that shapes stay; readings of
    other samples leave it out, so that no model has to know of it. Where a micro-batch has no sample
    at all they give one that does not count (`num_targets` is 0).
    """

    def read(self, located: Located, epochs: Ints) -> Rows:
        """The samples, in the order given; every array is new.

        epochs: int64 [samples], how often the sample's source was read before; for randomness that
        belongs to a sample and an epoch. One thread at a time.
        """

    def lengths(self, located: Located) -> Ints | None:
        """Positions that each sample takes before padding, int64 [samples]; None where all are alike.

        Reads what stands behind the shards' tokens, not the tokens. From any thread.
        """


def padded_length(length: int, most: int) -> int:
    """Row length of a micro-batch whose longest sample has `length` positions; at most `most`."""
    return min(most, max(ROUNDING, -(-length // ROUNDING) * ROUNDING))


def has_masked(located: Located) -> bool:
    """Whether some places hold no sample."""
    return located.indexes.size > 0 and int(located.indexes.min()) < 0


def pairs(located: Located) -> "zip[tuple[int, int]]":
    """Shard and index of every place."""
    return zip(located.shards.tolist(), located.indexes.tolist(), strict=True)
