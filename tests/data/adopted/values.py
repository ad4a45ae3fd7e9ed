"""What was written into the folders beside this file; the tests compute it anew."""

from typing import Any

import numpy as np

SPLITS = {"train": range(24), "val": range(24, 30)}
"""Numbers of the samples in each split, where a folder has splits."""

TAR_NAMES = {
    "image": "jpg", "label": "cls", "text": "txt", "data": "bin", "extra": "json",
    "matrix": "x.npy", "steps": "steps.npy",
}  # fmt: skip
"""Extension of each value in a tar."""


def tar_key(number: int) -> str:
    """Key of a sample in a tar; two are too long for a plain header."""
    return f"{'deep/' * 30 if number in (7, 8) else ''}s{number:04d}"


def sample(number: int) -> dict[str, Any]:
    """The values of one sample, all of which depend on its number."""
    return {
        "image": b"\xff\xd8\xff" + bytes([number]) * (20 + 3 * number),
        "label": number % 7,
        "weight": np.float32(number / 8),
        "text": f"sample {number} ü\u2028",
        "data": bytes(range(number, number + 40 + number % 5)),
        "extra": {"a": number, "b": [str(number)] * (number % 3)},
        "matrix": np.arange(6, dtype=np.float32).reshape(2, 3) * number,
        "steps": np.arange(1 + number % 4, dtype=np.int64) + number,
        "loose": np.arange(1 + number % 3, dtype=[np.int32, np.float64][number % 2]),
    }


DOCUMENTS = [
    [(7 * document + place) % 500 for place in range(2 + 13 * document % 40)] + [511]
    for document in range(60)
]
"""Token ids of some documents; each ends with 511."""
