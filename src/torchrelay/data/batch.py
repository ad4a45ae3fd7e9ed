"""What one forward pass is given."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

IGNORE_LABEL = -100
"""Label of a position that is not predicted (padding)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """The samples of one micro-batch, on the CPU."""

    tensors: dict[str, torch.Tensor]
    """Text: `tokens` int64 [samples, length] and `labels` int64 [samples, length] (already shifted:
    labels[:, t] is the token after tokens[:, t]; IGNORE_LABEL where nothing is predicted).
    Labelled documents: `tokens`, `attention_mask` int64 [samples, length] and `labels` int64 [samples].
    Python sources: every array of `read`, stacked along a new first dimension."""
    num_targets: int
    """Terms of the loss sum: predicted tokens, or samples where there is one prediction a sample."""
    num_tokens: int
    """Tokens read (without padding), or samples where there are no tokens."""
    sample_ids: NDArray[np.int64]
    """Which samples these are, [samples]."""


def split_batch(batch: MicroBatch, size: int) -> Iterator[MicroBatch]:
    """The batch in pieces of `size` samples, which divides it; views, no copies.

    For batches whose samples all have equally many targets and tokens.
    """
    total = len(batch.sample_ids)
    pieces = {name: torch.split(tensor, size) for name, tensor in batch.tensors.items()}
    num_targets, num_tokens = batch.num_targets * size // total, batch.num_tokens * size // total
    for index in range(total // size):
        yield MicroBatch(
            tensors={name: parts[index] for name, parts in pieces.items()},
            num_targets=num_targets,
            num_tokens=num_tokens,
            sample_ids=batch.sample_ids[index * size : (index + 1) * size],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFacts:
    """What a model must know of the data to be built. Pure values; the loader's dataset gives them."""

    vocabulary: int | None
    """Number of token ids, or None where the data has no tokens."""
    sequence_length: int | None
    """Longest `tokens` row, or None."""
    num_labels: int | None
    """Number of document classes, or None where documents have no label."""
    end_token: int | None
    """Id of the mark between documents, or None."""
