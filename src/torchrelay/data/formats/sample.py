"""What a shard of samples offers, whatever its format."""

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Value = bytes | str | int | float | NDArray[Any] | dict[str, Any] | list[Any]
"""What a column holds: `jpeg` and `png` columns give bytes, `json` ones what the JSON says."""
Sample = dict[str, Value]
"""One sample: values by column name."""


class SampleShard(Protocol):
    """The samples of one shard, read in place. Thread-safe."""

    def __len__(self) -> int:
        """Number of samples."""

    def sample(self, index: int) -> Sample:
        """Sample `index`; arrays are read-only views of the shard. DataError when it is damaged."""


def is_array(dtype: str) -> bool:
    """Whether a column of this dtype holds numbers or arrays of a numpy type."""
    try:
        return np.dtype(dtype).kind in "biuf"
    except TypeError:
        return False
