"""Make what a foreign library draws at random the same on every rank."""

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def fixed_seed(text: str) -> int:
    """A 32-bit seed that depends on `text` alone."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "little")


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed Python's, NumPy's and torch's CPU generator inside; put their states back afterwards.

    Not safe while another thread draws from them.
    """
    python, numpy, torch_state = random.getstate(), np.random.get_state(), torch.get_rng_state()
    random.seed(seed)
    np.random.seed(seed)
    # Not torch.manual_seed: that would seed the generators of GPUs too, which are not put back.
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(torch_state)
