"""What torchrelay does with the images of the benchmark: nothing but putting their bytes together."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]


def decode(sample: Mapping[str, Any]) -> Arrays:
    """The bytes as they are."""
    return {"image": np.frombuffer(sample["image"], np.uint8)}


def collate(samples: list[Arrays]) -> Arrays:
    """All bytes in a row, and where each image ends."""
    images = [sample["image"] for sample in samples]
    return {"image": np.concatenate(images), "ends": np.cumsum([image.size for image in images])}
