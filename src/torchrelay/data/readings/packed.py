"""Packed windows: all documents joined and cut in pieces of equal length."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchrelay.data.formats.tok import TokenShard
from torchrelay.data.open_shards import OpenShards
from torchrelay.data.order.order import Located
from torchrelay.data.readings.bounds import mark_starts, number_documents
from torchrelay.data.readings.rows import IGNORED, Ints, Rows, has_masked, pairs


class PackedWindows:
    """Sample i of a shard is tokens [i·L, i·L + L], so that L tokens are predicted."""

    def __init__(self, shards: OpenShards[TokenShard], length: int) -> None:
        self._shards = shards
        self._length = length
        self._only = _view_windows(shards.shard(0).tokens, length) if len(shards) == 1 else None

    def read(self, located: Located, epochs: Ints) -> Rows:
        """See `Reading.read`; `tokens` and `labels` are overlapping views of one array."""
        masked = has_masked(located)
        rows = self._windows(located)
        tokens, labels = rows[:, :-1], rows[:, 1:]
        count = located.indexes.size * self._length
        if masked:
            labels = _ignore_masked(labels, located)
            count = int((located.indexes >= 0).sum()) * self._length
        return Rows({"tokens": tokens, "labels": labels}, count, count)

    def lengths(self, located: Located) -> Ints | None:
        """All are alike."""
        return None

    def _windows(self, located: Located) -> NDArray[np.int64]:
        """[samples, L + 1]; rows of masked places hold anything."""
        if self._only is not None:
            return self._only[located.indexes].astype(np.int64)
        rows = np.zeros((located.indexes.size, self._length + 1), np.int64)
        for number, (shard, index) in enumerate(pairs(located)):
            if index >= 0:
                start = index * self._length
                rows[number] = self._shards.shard(shard).tokens[start : start + self._length + 1]
        return rows


class BoundedWindows:
    """Packed windows that tell where their documents begin.

    Every token of a document but its first is predicted, its end mark included; what follows an end
    mark is not, since nothing tells which document comes next. `positions` restart at 0 after every
    end mark, and at the start of the row even where that lies within a document.
    """

    def __init__(self, shards: OpenShards[TokenShard], length: int) -> None:
        self._windows = PackedWindows(shards, length)
        self._shards = shards
        self._length = length

    def read(self, located: Located, epochs: Ints) -> Rows:
        """See `Reading.read`."""
        whole = self._windows.read(located, epochs)
        starts = np.zeros((located.indexes.size, self._length + 1), np.bool_)
        for number, (shard, index) in enumerate(pairs(located)):
            if index >= 0:
                mark_starts(self._shards.shard(shard).ends, index * self._length, starts[number])
        labels = np.where(starts[:, 1:], IGNORED, whole.arrays["labels"])
        bounds = number_documents(starts[:, :-1])
        targets = whole.num_targets - int(starts[:, 1:].sum())
        arrays = {"tokens": whole.arrays["tokens"], "labels": labels, **bounds._asdict()}
        return Rows(arrays, targets, whole.num_tokens)

    def lengths(self, located: Located) -> Ints | None:
        """All are alike."""
        return None


def count_windows(tokens: int, length: int) -> int:
    """Packed samples of `length` predicted tokens in a shard of `tokens` tokens."""
    return max(0, (tokens - 1) // length)


def _ignore_masked(labels: NDArray[np.int64], located: Located) -> NDArray[np.int64]:
    labels = labels.copy()
    labels[located.indexes < 0] = IGNORED
    return labels


def _view_windows(tokens: NDArray[Any], length: int) -> NDArray[Any]:
    """The windows of a shard as overlapping rows of its tokens; nothing is copied."""
    shape = (count_windows(tokens.size, length), length + 1)
    strides = (length * tokens.itemsize, tokens.itemsize)
    view: NDArray[Any] = np.lib.stride_tricks.as_strided(tokens, shape, strides, writeable=False)
    return view
