"""Randomness that belongs to a sample and an epoch, whoever reads it, and when."""

import numpy as np

_MASK = 2**64 - 1


def sample_generator(seed: int, epoch: int, sample_id: int) -> np.random.Generator:
    """A generator of its own for one sample in one epoch; the same in every process.

    Philox takes its key as it is, so nothing is drawn to seed it.
    """
    # Multiplied by an odd constant: seeds that are close do not lead to keys that are.
    mixed = (seed * 0x9E3779B97F4A7C15 + epoch) & _MASK
    key = np.array([mixed, sample_id & _MASK], np.uint64)  # of a list numpy would make floats
    return np.random.Generator(np.random.Philox(key=key))
