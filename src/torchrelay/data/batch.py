"""What one forward pass is given.

torch is imported only when a batch is made, so that processes that only decode samples need none.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from torchrelay.data.readings.rows import Rows

if TYPE_CHECKING:
    import torch

IGNORE_LABEL = -100
"""Label of a position that is not predicted (padding)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """The samples of one micro-batch, on the CPU."""

    tensors: "dict[str, torch.Tensor]"
    """Text: `tokens` int64 [samples, length] and `labels` int64 [samples, length] (already shifted:
    labels[:, t] is the token after tokens[:, t]; IGNORE_LABEL where nothing is predicted). Where
    documents are told apart also `positions` and `documents`, int64 [samples, length]: the place in the
    document and the number of the document in its row; nothing is seen or predicted across documents.
    Labelled documents: `tokens`, `attention_mask` int64 [samples, length] and `labels` int64 [samples].
    Other samples: every array of the decoded sample, put together; Python sources: of `read`."""
    num_targets: int
    """Terms of the loss sum: predicted tokens, or samples where there is one prediction a sample."""
    num_tokens: int
    """Tokens read (without padding), or samples where there are no tokens."""
    sample_ids: NDArray[np.int64]
    """Which samples these are, [samples]; places without a sample are left out."""

    @property
    def bytes(self) -> int:
        """Memory of the tensors."""
        return sum(tensor.nbytes for tensor in self.tensors.values())


def make_batch(rows: Rows, sample_ids: NDArray[np.int64]) -> MicroBatch:
    """The arrays of a reading as tensors, without a copy. `sample_ids` is -1 for places without a sample."""
    import torch

    if sample_ids.size and int(sample_ids.min()) < 0:
        sample_ids = sample_ids[sample_ids >= 0]
    return MicroBatch(
        tensors={name: torch.from_numpy(array) for name, array in rows.arrays.items()},
        num_targets=rows.num_targets,
        num_tokens=rows.num_tokens,
        sample_ids=sample_ids,
    )


def pin_batch(batch: MicroBatch) -> MicroBatch:
    """The batch in page-locked memory, from which a GPU copies without waiting."""
    return replace(batch, tensors={name: tensor.pin_memory() for name, tensor in batch.tensors.items()})


def split_batch(batch: MicroBatch, size: int) -> Iterator[MicroBatch]:
    """The batch in pieces of `size` samples, which divides it; views, no copies.

    For batches whose samples all have equally many targets and tokens.
    """
    import torch

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
    has_labels: bool = False
    """Whether the documents in store have a class, also where the reading leaves it out."""
    has_bounds: bool = False
    """Whether batches tell documents apart, so that a model must neither see nor predict across them."""
    label_names: tuple[str, ...] | None = None
    """Names of the classes of documents or other samples, or None where they are not known."""
    arrays: Mapping[str, tuple[int, ...] | None] | None = None
    """The arrays of a decoded sample and their shapes: -1 a length, None a shape that only reading
    tells. None where there are tokens, and where a function of the user makes the arrays."""
