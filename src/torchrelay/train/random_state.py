"""The random generators of a process, as JSON, and back.

torch's generators are seeded anew for every micro-batch (see `torchrelay.train.units`), so what
a model draws from them does not depend on how training was cut into attempts. Python's and
NumPy's are saved for models that use them.
"""

import base64
import random
from typing import Any

import numpy as np
import torch


def capture_random_state() -> dict[str, Any]:
    """State of every generator of this process."""
    kind, keys, position, has_gauss, gauss = np.random.get_state()  # noqa: NPY002
    return {
        "python": random.getstate(),
        "numpy": [kind, np.asarray(keys).tolist(), position, has_gauss, gauss],
        "torch": _encode(torch.get_rng_state()),
        "cuda": [_encode(torch.cuda.get_rng_state())] if torch.cuda.is_available() else [],
    }


def restore_random_state(state: dict[str, Any]) -> None:
    """Put a captured state back."""
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    kind, keys, position, has_gauss, numpy_gauss = state["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), position, has_gauss, numpy_gauss))  # noqa: NPY002
    torch.set_rng_state(_decode(state["torch"]))
    if state["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state(_decode(state["cuda"][0]))


def seed_process(seed: int, rank: int) -> None:
    """Seed every generator; each rank differs, as each reads other samples."""
    mixed = (seed * 1_000_003 + rank) % 2**32
    random.seed(mixed)
    np.random.seed(mixed)  # noqa: NPY002
    torch.manual_seed(mixed)


def _encode(state: torch.Tensor) -> str:
    return base64.b64encode(state.numpy().tobytes()).decode()


def _decode(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
