"""Randomness that belongs to a sample and an epoch, whoever reads it, and when."""

import threading
from typing import Any

import numpy as np

_MASK = 2**64 - 1
_NONE = np.zeros(4, np.uint64)


class SampleRandomness:
    """Generators keyed by (seed, epoch, sample id); the same in every process. Safe from any thread.

    Every thread has one Philox, whose key is set for each sample: making one for each would cost six
    times as much, most of it for entropy that a keyed generator does not use.
    """

    def __init__(self, seed: int) -> None:
        # Multiplied by an odd constant: seeds that are close do not lead to keys that are.
        self._seed = seed * 0x9E3779B97F4A7C15
        self._own = threading.local()

    def generator(self, epoch: int, sample_id: int) -> np.random.Generator:
        """The generator of one sample in one epoch, at its start; good until this thread's next call."""
        own = self._own.__dict__
        if not own:
            own["philox"] = np.random.Philox(key=0)
            own["generator"] = np.random.Generator(own["philox"])
        key = np.array([(self._seed + epoch) & _MASK, sample_id & _MASK], np.uint64)
        own["philox"].state = _state(key)
        generator: np.random.Generator = own["generator"]
        return generator


def _state(key: Any) -> dict[str, Any]:
    """A Philox that has drawn nothing yet."""
    return {
        "bit_generator": "Philox",
        "state": {"counter": _NONE, "key": key},
        "buffer": _NONE,
        "buffer_pos": 4,
        "has_uint32": 0,
        "uinteger": 0,
    }
