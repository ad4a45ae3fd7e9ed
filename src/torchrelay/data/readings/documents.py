"""One document a sample, padded."""

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from torchrelay.data.formats.tok import TokenShard
from torchrelay.data.open_shards import OpenShards
from torchrelay.data.order.order import Located
from torchrelay.data.readings.lengths import DocumentLengths
from torchrelay.data.readings.rows import IGNORED, Ints, Rows, padded_length, pairs

Pad = Literal["fixed", "longest"]


class Documents:
    """Sample i of a shard is its i-th document; every token but the first is predicted."""

    def __init__(
        self, shards: OpenShards[TokenShard], lengths: DocumentLengths, row_length: int, pad: Pad
    ) -> None:
        self._shards = shards
        self._lengths = lengths
        self._row_length = row_length
        self._pad = pad

    def read(self, located: Located, epochs: Ints) -> Rows:
        """See `Reading.read`; rows are padded with token 0, which is not predicted."""
        documents = [
            _document(self._shards, *place)[0][: self._row_length + 1] if place[1] >= 0 else None
            for place in pairs(located)
        ]
        longest = max(0 if document is None else document.size - 1 for document in documents)
        shape = (len(documents), _row_length(self._pad, longest, self._row_length))
        tokens, labels = np.zeros(shape, np.int64), np.full(shape, IGNORED, np.int64)
        count = 0
        for number, document in enumerate(documents):
            if document is not None:
                targets = document[1:]
                tokens[number, : targets.size] = document[: targets.size]
                labels[number, : targets.size] = targets
                count += targets.size
        return Rows({"tokens": tokens, "labels": labels}, count, count)

    def lengths(self, located: Located) -> Ints | None:
        """See `Reading.lengths`; predicted tokens."""
        return np.clip(self._lengths.located(located) - 1, 0, self._row_length)


class LabelledDocuments:
    """Sample i of a shard is its i-th document and its class; an end mark that does not fit is left out."""

    def __init__(
        self, shards: OpenShards[TokenShard], lengths: DocumentLengths, row_length: int, pad: Pad
    ) -> None:
        self._shards = shards
        self._lengths = lengths
        self._row_length = row_length
        self._pad = pad

    def read(self, located: Located, epochs: Ints) -> Rows:
        """See `Reading.read`; rows are padded with token 0, where `attention_mask` is 0.

        A place without a sample has one token of 0 that can be seen: attention to nothing has no value.
        """
        nothing = np.zeros(1, np.int64)
        documents = [
            _document(self._shards, *place) if place[1] >= 0 else (nothing, IGNORED)
            for place in pairs(located)
        ]
        longest = min(self._row_length, max(document.size for document, _ in documents))
        shape = (len(documents), _row_length(self._pad, longest, self._row_length))
        tokens, mask = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        for number, (document, _) in enumerate(documents):
            document = document[: self._row_length]
            tokens[number, : document.size] = document
            mask[number, : document.size] = 1
        labels = np.array([label for _, label in documents], np.int64)
        arrays = {"tokens": tokens, "attention_mask": mask, "labels": labels}
        masked = int((located.indexes < 0).sum())
        return Rows(arrays, labels.size - masked, int(mask.sum()) - masked)

    def lengths(self, located: Located) -> Ints | None:
        """See `Reading.lengths`; tokens that can be seen."""
        return np.clip(self._lengths.located(located), 1, self._row_length)


def _row_length(pad: Pad, longest: int, most: int) -> int:
    return most if pad == "fixed" else padded_length(longest, most)


def _document(shards: OpenShards[TokenShard], number: int, index: int) -> tuple[NDArray[Any], int]:
    """Tokens of a document with its end mark, and its label (0 where it has none)."""
    shard = shards.shard(number)
    start = int(shard.ends[index - 1]) if index else 0
    label = 0 if shard.labels is None else int(shard.labels[index])
    return shard.tokens[start : int(shard.ends[index])], label
