"""Where documents begin within rows, as the arrays that models understand. Pure numpy."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchrelay.data.readings.rows import Ints


class Bounds(NamedTuple):
    """Which document every position belongs to; both int64 [rows, length]."""

    positions: Ints
    """From 0 in every document."""
    documents: Ints
    """Number of the document in its row, from 0."""


def number_documents(starts: NDArray[np.bool_]) -> Bounds:
    """`starts` [rows, length] is True where a document begins; column 0 always counts as such."""
    places = np.arange(starts.shape[1], dtype=np.int64)
    begun = np.maximum.accumulate(np.where(starts, places, 0), axis=1)
    documents = np.cumsum(starts, axis=1, dtype=np.int64)
    return Bounds(places - begun, documents - documents[:, :1])


def mark_starts(ends: NDArray[Any], start: int, marks: NDArray[np.bool_]) -> None:
    """Mark in a row of tokens [start, start + len(marks)) where a document begins.

    `ends` are positions after every document's end mark in the same shard, ascending.
    """
    # Of the same type as the array: else numpy would convert all of it, every time.
    first, stop = ends.searchsorted(np.array((start, start + marks.size), ends.dtype))
    marks[ends[first:stop].astype(np.int64) - start] = True
