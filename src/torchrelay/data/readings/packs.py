"""Packs: whole documents put into one row, as `data build --pack` planned it."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchrelay.core.errors import DataError
from torchrelay.data.formats.tok import TokenShard
from torchrelay.data.open_shards import OpenShards
from torchrelay.data.order.order import Located
from torchrelay.data.readings.bounds import number_documents
from torchrelay.data.readings.rows import IGNORED, Ints, Rows, pairs


class PlannedPacks:
    """Sample i of a shard is its i-th pack; every token of a document but the first is predicted.

    A document of n tokens takes n - 1 positions: its end mark is only ever predicted. `positions` and
    `documents` tell documents apart; padding is a document of its own, never predicted.
    """

    def __init__(self, shards: OpenShards[TokenShard], length: int) -> None:
        self._shards = shards
        self._length = length

    def read(self, located: Located, epochs: Ints) -> Rows:
        """See `Reading.read`; all arrays are int64 [samples, length]."""
        shape = (located.indexes.size, self._length)
        tokens, labels = np.zeros(shape, np.int64), np.full(shape, IGNORED, np.int64)
        starts = np.zeros(shape, np.bool_)
        count = 0
        for number, (shard, index) in enumerate(pairs(located)):
            if index >= 0:
                count += self._fill(shard, index, (tokens[number], labels[number], starts[number]))
        arrays = {"tokens": tokens, "labels": labels, **number_documents(starts)._asdict()}
        return Rows(arrays, count, count)

    def lengths(self, located: Located) -> Ints | None:
        """All are alike."""
        return None

    def _fill(self, shard: int, index: int, row: tuple[NDArray[Any], NDArray[Any], NDArray[Any]]) -> int:
        """Write a pack into its row; returns how many tokens are predicted."""
        tokens, labels, starts = row
        place = 0
        for document in self._documents(shard, index):
            stop = place + document.size - 1
            if stop > self._length:
                raise DataError(
                    f"pack {index} of shard {self._shards.entries[shard].key} has more than the "
                    f"{self._length:,} positions of a row",
                    hint="torchrelay data verify lists all that is damaged",
                )
            tokens[place:stop] = document[:-1]
            labels[place:stop] = document[1:]
            starts[place : place + 1] = True
            place = stop
        starts[place : place + 1] = True  # padding attends to itself alone
        return place

    def _documents(self, number: int, index: int) -> Iterator[NDArray[Any]]:
        """The documents of a pack that have something to predict, in its order."""
        shard = self._shards.shard(number)
        if shard.packs is None:
            raise DataError(f"shard {self._shards.entries[number].key} has no packs")
        order, ends = shard.packs
        for document in order[int(ends[index - 1]) if index else 0 : int(ends[index])].tolist():
            start = int(shard.ends[document - 1]) if document else 0
            tokens = shard.tokens[start : int(shard.ends[document])]
            if tokens.size > 1:
                yield tokens
