"""Samples from a user's own code.

The recipe names a function; it is called with `split` and the options and returns a `Source`.
"""

import inspect
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import xxhash
from numpy.typing import NDArray

from torchrelay.core.errors import DataError
from torchrelay.core.plugins import load_object
from torchrelay.data.manifest import TRAIN
from torchrelay.data.order.order import Located
from torchrelay.data.reading import Rows
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

        May be called from another thread than the one that made the source, one call at a time.
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

    def read(self, located: Located) -> Rows:
        """See `Reading.read`."""
        count = located.sample_ids.size
        return Rows(self._source.take(located.sample_ids), count, count)


class SourceReading:
    """Stacks the samples of a Source."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def read(self, located: Located) -> Rows:
        """See `Reading.read`."""
        indexes = located.sample_ids.tolist()
        samples = [self._source.read(index) for index in indexes]
        names = list(samples[0])
        for index, sample in zip(indexes, samples, strict=True):
            if sample.keys() != samples[0].keys():
                raise DataError(
                    f"data.source: sample {index} has {', '.join(sample)}; "
                    f"sample {indexes[0]} has {', '.join(names)}"
                )
        arrays = {name: _stack(name, [sample[name] for sample in samples], indexes) for name in names}
        return Rows(arrays, len(indexes), len(indexes))


def open_source_reading(source: Source) -> SourceReading | ArraysReading:
    """The reading that suits the source."""
    return ArraysReading(source) if isinstance(source, Arrays) else SourceReading(source)


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


def _stack(name: str, values: list[Any], indexes: list[int]) -> NDArray[Any]:
    arrays = [np.asarray(value) for value in values]
    if arrays[0].dtype.kind not in "biufc":
        raise DataError(
            f"data.source: {name!r} of sample {indexes[0]} is of type {arrays[0].dtype}, not a number"
        )
    for index, array in zip(indexes, arrays, strict=True):
        if (array.shape, array.dtype) != (arrays[0].shape, arrays[0].dtype):
            raise DataError(
                f"data.source: {name!r} is {array.dtype} {array.shape} in sample {index}, "
                f"{arrays[0].dtype} {arrays[0].shape} in sample {indexes[0]}",
                hint="every sample must have the same shapes; pad in read()",
            )
    return np.stack(arrays)
