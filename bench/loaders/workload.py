"""The samples that all loaders read: made from their number alone, so that each can be told again.

tok    1,025 int32 below 100,000; the first is the sample's number
img    bytes as of a JPEG, 19.7 kB on average; the first eight are the sample's number
small  one int64, the sample's number: for resuming in a long epoch
"""

import numpy as np
from numpy.typing import NDArray

ROW = 1025
VOCABULARY = 100_000
SHARD_BYTES = 8_000_000
ROWS_PER_SHARD = SHARD_BYTES // (ROW * 4)
_MEAN_BYTES = 19_700


def row(number: int) -> NDArray[np.int32]:
    """Sample of `tok`, [1025]."""
    tokens = np.random.default_rng(number).integers(0, VOCABULARY, ROW, dtype=np.int32)
    tokens[0] = number
    return tokens


def image(number: int) -> bytes:
    """Sample of `img`."""
    random = np.random.default_rng(number)
    size = int(np.clip(random.normal(_MEAN_BYTES, 4000), 4000, 40000))
    return number.to_bytes(8, "little") + random.bytes(size - 8)


def image_number(data: bytes) -> int:
    """The number of an image."""
    return int.from_bytes(bytes(data[:8]), "little")


def payload_bytes(workload: str, samples: int) -> int:
    """Bytes of the samples of an epoch, the same for every loader."""
    return samples * {"tok": ROW * 4, "img": _MEAN_BYTES, "small": 8}[workload]
