"""How well an order mixes data that is stored class by class; pure NumPy.

An order is an array: the stored numbers of the samples as they are read. A class is a run of
neighbours in stored order.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class Quality(NamedTuple):
    """One order of one dataset."""

    dispersion: float
    """Chi-squared of a batch's classes over what a full permutation gives; 1 is perfect."""
    distance: float
    """Mean distance of two samples of a batch's classes to the whole (total variation)."""
    classes: float
    """Mean number of classes in a batch."""
    largest: float
    """Largest share that one class ever has in a batch."""
    apart: float
    """Median distance of two stored neighbours in reading, as a share of the epoch; 0.29 is perfect."""
    together: float
    """Share of stored neighbours that come into the same batch."""
    kept: float
    """Share of successive reads that are stored neighbours."""
    held: int
    """Most shards that have been begun and not finished."""


def classes_of(samples: int, classes: int) -> Ints:
    """The class of every stored sample: equal runs."""
    return np.arange(samples) * classes // samples


def batch_counts(order: Ints, classes: Ints, batch: int) -> Ints:
    """Samples of every class in every whole batch, [batches, classes]."""
    batches, kinds = order.size // batch, int(classes.max()) + 1
    rows = np.repeat(np.arange(batches), batch)
    cells = rows * kinds + classes[order[: batches * batch]]
    return np.bincount(cells, minlength=batches * kinds).reshape(batches, kinds)


def dispersion(counts: Ints, sizes: Ints) -> Floats:
    """Chi-squared of every batch against the whole, over its mean in a full permutation, [batches]."""
    samples, batch = int(sizes.sum()), int(counts[0].sum())
    expected = batch * sizes / samples
    chi2 = ((counts - expected) ** 2 / expected).sum(1)
    return chi2 / ((sizes.size - 1) * (samples - batch) / (samples - 1))


def distances(counts: Ints, sizes: Ints) -> Floats:
    """Total variation between every batch and the whole, 0 to 1, [batches]."""
    return np.abs(counts / counts.sum(1, keepdims=True) - sizes / sizes.sum()).sum(1) / 2


def most_held(order: Ints, shard_counts: Ints) -> int:
    """Most shards of which some samples have been read and some have not."""
    places = np.empty_like(order)
    places[order] = np.arange(order.size)
    starts = np.cumsum(shard_counts) - shard_counts
    begun = np.minimum.reduceat(places, starts)
    done = np.maximum.reduceat(places, starts)
    changes = np.zeros(order.size + 1, np.int64)
    np.add.at(changes, begun, 1)
    np.add.at(changes, done + 1, -1)
    return int(np.cumsum(changes).max())


def measure(order: Ints, shard_counts: Ints, num_classes: int, batch: int) -> Quality:
    """All figures of an order; it has to be a permutation."""
    if not np.array_equal(np.sort(order), np.arange(order.size)):
        raise ValueError("the order repeats or leaves out samples")
    classes = classes_of(order.size, num_classes)
    sizes = np.bincount(classes)
    counts = batch_counts(order, classes, batch)
    places = np.empty_like(order)
    places[order] = np.arange(order.size)
    apart = np.abs(np.diff(places))
    return Quality(
        dispersion=float(dispersion(counts, sizes).mean()),
        distance=float(distances(counts, sizes).mean()),
        classes=float((counts > 0).sum(1).mean()),
        largest=float(counts.max() / batch),
        apart=float(np.median(apart) / order.size),
        together=float((np.diff(places // batch) == 0).mean()),
        kept=float((np.abs(np.diff(order)) == 1).mean()),
        held=most_held(order, shard_counts),
    )


def bound_dispersion(shards: int, windows: float, batch: int) -> float:
    """What the mean dispersion cannot exceed, for shards of equal size and any classes.

    `windows` is how many windows a lane reads one after another. While m random shards are mixed, the
    share of a class in a batch varies by drawing the batch from what is open, p(1-p)/batch at most, and
    by drawing those shards, p(1-p)/m at most, times (shards - m)/(shards - 1) because none is drawn
    twice. Averaged over an epoch, shards/m is the number of windows.
    """
    return 1 + batch * (windows - 1) / max(1, shards - 1)


def bound_distance(dispersion_bound: float, batch: int, num_classes: int) -> float:
    """The same for the mean total variation: by Cauchy-Schwarz, half the root of classes times variance."""
    return min(1.0, 0.5 * (num_classes / batch * dispersion_bound) ** 0.5)
