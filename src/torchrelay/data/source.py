"""Samples from a user's own code.

The recipe names a function; it is called with `split` and the options and returns a `Source`.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import xxhash
from numpy.typing import NDArray

from torchrelay.core.errors import DataError
from torchrelay.core.plugins import load_object
from torchrelay.data.manifest import TRAIN
from torchrelay.data.order.order import Located
from torchrelay.data.readings.randomness import SampleRandomness
from torchrelay.data.readings.rows import Ints, Rows, has_masked
from torchrelay.recipe.data_schema import DataSection


class Source(Protocol):
    """Samples by number. The order in which they are read is not its business."""

    def __len__(self) -> int:
        """Number of samples, at least 1 for training; the same on every rank and in every attempt."""

    @property
    def version(self) -> str:
        """Changes whenever a sample changes, so that a run never goes on with other data."""

    def read(self, index: int) -> dict[str, NDArray[Any]]:
        """Sample `index`: arrays by name, of the same names, shapes and types for every sample.

        May be called from another thread than the one that made the source, one call at a time; with
        `data.workers` in processes that made a source each. A method that also takes `rng` as a keyword
        is given a `numpy.random.Generator` of that sample and epoch: all its randomness must come from it.
        """


class Arrays:
    """A Source of arrays in memory, one row a sample; a batch is taken in one go.

    `version` defaults to a hash of the content.
    """

    def __init__(self, arrays: Mapping[str, NDArray[Any]], *, version: str | None = None) -> None:
        self._arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        lengths = {name: len(array) for name, array in self._arrays.items()}
        if len(set(lengths.values())) != 1:
            raise DataError(f"data.source: the arrays differ in length: {lengths}")
        self._length = next(iter(lengths.values()))
        self.version = version or _hash_arrays(self._arrays)

    def __len__(self) -> int:
        """See `Source`."""
        return self._length

    def read(self, index: int) -> dict[str, NDArray[Any]]:
        """See `Source`."""
        return {name: array[index] for name, array in self._arrays.items()}

    def take(self, indexes: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """Several samples, stacked."""
        return {name: array[indexes] for name, array in self._arrays.items()}


class ArraysReading:
    """Takes the samples of `Arrays`."""

    def __init__(self, source: Arrays) -> None:
        self._source = source

    def read(self, located: Located, epochs: Ints) -> Rows:
        """See `Reading.read`."""
        indexes, count = located.indexes, located.indexes.size
        if has_masked(located):
            indexes = indexes[indexes >= 0]
            count = indexes.size
            indexes = indexes if count else np.zeros(1, np.int64)
        return Rows(self._source.take(indexes), count, count)

    def lengths(self, located: Located) -> Ints | None:
        """All are alike."""
        return None


class SourceReading:
    """Stacks the samples of a Source."""

    def __init__(self, source: Source, seed: int) -> None:
        self._source = source
        self._randomness = SampleRandomness(seed)
        self._takes_rng = _takes_rng(source)

    def read(self, located: Located, epochs: Ints) -> Rows:
        """See `Reading.read`."""
        pairs = zip(located.indexes.tolist(), epochs.tolist(), strict=True)
        wanted = [(index, epoch) for index, epoch in pairs if index >= 0]
        samples = [self._read(index, epoch) for index, epoch in wanted or [(0, 0)]]
        indexes = [index for index, _ in wanted] or [0]
        arrays = stack_samples(samples, indexes, "data.source")
        return Rows(arrays, len(wanted), len(wanted))

    def lengths(self, located: Located) -> Ints | None:
        """All are alike."""
        return None

    def _read(self, index: int, epoch: int) -> dict[str, NDArray[Any]]:
        if not self._takes_rng:
            return self._source.read(index)
        read: Callable[..., dict[str, NDArray[Any]]] = self._source.read
        return read(index, rng=self._randomness.generator(epoch, index))


def open_source_reading(source: Source, seed: int) -> SourceReading | ArraysReading:
    """The reading that suits the source; `seed` is the run's, for sources whose samples are random."""
    return ArraysReading(source) if isinstance(source, Arrays) else SourceReading(source, seed)


def load_source(section: DataSection, split: str) -> Source:
    """Call the function that `data.source` names; DataError or RecipeError when it does not fit.

    Only the validation split may be empty.
    """
    factory = load_object(section.source or "", "data.source")
    try:
        inspect.signature(factory).bind(split=split, **section.options)
    except TypeError as error:
        raise DataError(
            f"data.source: {section.source} cannot be called with split and data.options: {error}"
        ) from error
    source = factory(split=split, **section.options)
    lacking = [name for name in ("__len__", "read", "version") if getattr(source, name, None) is None]
    if lacking:
        raise DataError(
            f"data.source: {section.source} returned {type(source).__name__} without {', '.join(lacking)}"
        )
    if not isinstance(source.version, str) or not source.version:
        raise DataError(f"data.source: the version must be a text, got {source.version!r}")
    if len(source) < 1 and split == TRAIN:
        raise DataError(f"data.source: the {split} split of {section.source} has no sample")
    checked: Source = source
    return checked


def _hash_arrays(arrays: Mapping[str, NDArray[Any]]) -> str:
    digest = xxhash.xxh3_128()
    for name in sorted(arrays):
        digest.update(f"{name} {arrays[name].dtype.str} {arrays[name].shape}\n".encode())
        digest.update(arrays[name].data)
    return digest.hexdigest()


def stack_samples(
    samples: Sequence[Mapping[str, Any]], sample_ids: Sequence[int], where: str
) -> dict[str, NDArray[Any]]:
    """The arrays of some samples, each name stacked along a new first dimension.

    DataError that names the samples when names, shapes or types differ; `where` is the recipe path.
    """
    names = list(samples[0])
    for number, sample in zip(sample_ids, samples, strict=True):
        if sample.keys() != samples[0].keys():
            raise DataError(
                f"{where}: sample {number} has {', '.join(sample)}; "
                f"sample {sample_ids[0]} has {', '.join(names)}"
            )
    return {name: _stack(f"{where}: {name!r}", [s[name] for s in samples], sample_ids) for name in names}


def _takes_rng(source: Source) -> bool:
    try:
        parameters = inspect.signature(source.read).parameters
    except (ValueError, TypeError):  # some functions written in C tell nothing
        return False
    return "rng" in parameters


def _stack(name: str, values: list[Any], indexes: Sequence[int]) -> NDArray[Any]:
    arrays = [np.asarray(value) for value in values]
    if arrays[0].dtype.kind not in "biufc":
        raise DataError(f"{name} of sample {indexes[0]} is of type {arrays[0].dtype}, not a number")
    for index, array in zip(indexes, arrays, strict=True):
        if (array.shape, array.dtype) != (arrays[0].shape, arrays[0].dtype):
            raise DataError(
                f"{name} is {array.dtype} {array.shape} in sample {index}, "
                f"{arrays[0].dtype} {arrays[0].shape} in sample {indexes[0]}",
                hint="every sample must have the same shapes; pad in read()",
            )
    return np.stack(arrays)
