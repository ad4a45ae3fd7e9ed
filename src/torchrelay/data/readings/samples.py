"""Samples of named columns, decoded and put together by functions of the recipe."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from torchrelay.core.errors import DataError
from torchrelay.data.formats.sample import Sample, SampleShard
from torchrelay.data.open_shards import OpenShards
from torchrelay.data.order.order import Located
from torchrelay.data.readings.failure import Place, SampleFailure
from torchrelay.data.readings.rows import Ints, Rows

THREADS_PAY_S = 200e-6
"""Decoding time of a sample above which handing it to another thread costs less than it brings."""

Arrays = dict[str, NDArray[Any]]
Collate = Callable[[list[Arrays]], Arrays]


class Decoder(Protocol):
    """Makes arrays of a sample; the same for the same sample and epoch, wherever it is called."""

    def decode(self, sample: Sample, sample_id: int, epoch: int) -> Arrays:
        """The arrays by name; DataError, which need not name the sample. From several threads at a time."""


class DecodedSamples:
    """Sample i of a shard is its i-th sample."""

    def __init__(
        self, shards: OpenShards[SampleShard], decoder: Decoder, collate: Collate, *, threads: int
    ) -> None:
        """`threads` > 1: samples that take long are decoded side by side."""
        self._shards = shards
        self._decoder = decoder
        self._collate = collate
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None
        self._sample_s = 0.0
        """What a sample of the last micro-batch took."""

    def read(self, located: Located, epochs: Ints) -> Rows:
        """See `Reading.read`; SampleFailure when the decoder cannot decode a sample."""
        columns = np.stack([located.shards, located.indexes, located.sample_ids, epochs], axis=1)
        real = columns[located.indexes >= 0]
        count = len(real)
        places = real.tolist() or [[self._first_filled(), 0, 0, 0]]
        return Rows(self._collate(self._decode_all(places)), count, count)

    def lengths(self, located: Located) -> Ints | None:
        """All are alike."""
        return None

    def _decode_all(self, places: list[list[int]]) -> list[Arrays]:
        threads = min(self._threads, len(places))
        if threads < 2 or self._sample_s < THREADS_PAY_S:
            return self._decode(places)
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="decode")
        size = -(-len(places) // threads)
        pieces = [places[start : start + size] for start in range(0, len(places), size)]
        return [arrays for piece in self._pool.map(self._decode, pieces) for arrays in piece]

    def _decode(self, places: list[list[int]]) -> list[Arrays]:
        begun = time.perf_counter()
        found = [self._decode_one(*place) for place in places]
        self._sample_s = (time.perf_counter() - begun) / len(places)
        return found

    def _decode_one(self, shard: int, index: int, sample_id: int, epoch: int) -> Arrays:
        sample = self._shards.shard(shard).sample(index)
        try:
            return self._decoder.decode(sample, sample_id, epoch)
        except DataError as reason:
            place = Place(sample_id, epoch, self._shards.entries[shard].key, index)
            raise SampleFailure(place, reason) from reason

    def _first_filled(self) -> int:
        return next(number for number, entry in enumerate(self._shards.entries) if entry.samples)
