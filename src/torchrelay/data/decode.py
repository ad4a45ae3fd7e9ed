"""What `data.decode` and `data.collate` of the recipe mean: from a stored sample to arrays of a micro-batch.

All randomness of a sample comes from the run's seed, the epoch and the sample's id, so it is the
same on any rank, in any worker, and in any order of reading.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from traceback import walk_tb
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchrelay.core.errors import DataError, RecipeError
from torchrelay.core.plugins import load_object, nearest
from torchrelay.data.formats.mds_encoding import ANY_ARRAY
from torchrelay.data.formats.sample import Sample, is_array
from torchrelay.data.image_decode import ImageDecoder, parse_image_options
from torchrelay.data.manifest import Column, Content
from torchrelay.data.readings.randomness import SampleRandomness
from torchrelay.data.readings.samples import Arrays, Collate, Decoder
from torchrelay.recipe.data_schema import DataSection

IMAGE = "image"
_NUMBERS = "biufc"
"""Kinds of numpy types that a batch may hold."""
_NO_COLUMNS: Final[Mapping[str, "np.dtype[Any]"]] = MappingProxyType({})
_RANKS: Final[Mapping[str, int]] = MappingProxyType({"b": 0, "u": 1, "i": 1, "f": 2, "c": 3})
"""By kind of a numpy type: what a kind holds, one of the same or a higher rank can stand for."""
_MOST_WORDS = 500
"""Characters of a user's error that are shown."""


def make_decoder(section: DataSection, content: Content, seed: int, *, training: bool = True) -> Decoder:
    """The decoder that the recipe asks for; without `training`, samples are not augmented.

    RecipeError when it does not fit, DataError when the dataset's columns need one and there is none.
    """
    if section.decode is None:
        return _PlainDecoder(content.columns)
    if section.decode == IMAGE:
        options = parse_image_options(section.decode_options)
        return ImageDecoder(options, content.columns, seed, training=training)
    if ":" not in section.decode:
        raise RecipeError(
            f"data.decode: there is no decoder {section.decode!r}{nearest(section.decode, [IMAGE])}",
            hint="write image, or package.module:function",
        )
    function = load_object(section.decode, "data.decode")
    call = _Call(section.decode, function, section.decode_options)
    return _FunctionDecoder(call, content.columns, seed, training=training)


def make_collate(section: DataSection) -> Collate:
    """The function that puts decoded samples together; the default stacks arrays of equal shape."""
    if section.collate is None:
        return stack_samples
    function = load_object(section.collate, "data.collate")
    name = section.collate
    _check_call(function, "data.collate", name, ([],), {})

    def collate(samples: list[Arrays]) -> Arrays:
        return check_arrays(function(samples), f"data.collate {name}", _NO_COLUMNS)

    return collate


def stack_samples(samples: list[Arrays]) -> Arrays:
    """Every array, stacked along a new first dimension; DataError that names what does not fit."""
    names = samples[0].keys()
    for number, sample in enumerate(samples):
        if len(sample) != len(names):
            other = ", ".join(sorted(names ^ sample.keys()))
            raise DataError(f"samples 0 and {number} of the micro-batch differ in {other}")
    stacked: Arrays = {}
    for name, first in samples[0].items():
        rows = np.empty((len(samples), *first.shape), first.dtype)
        for number, sample in enumerate(samples):
            array = sample.get(name)
            if array is None or array.shape != first.shape or array.dtype != first.dtype:
                raise _misfit(name, first, array, number)
            rows[number] = array
        stacked[name] = rows
    return stacked


class _PlainDecoder:
    """Gives numbers and arrays as they are stored."""

    def __init__(self, columns: tuple[Column, ...]) -> None:
        for column in columns:
            if not is_array(column.dtype) and column.dtype != ANY_ARRAY:
                raise _needs_decoder(column)
        self._columns = [(column.name, column.dtype) for column in columns]

    def decode(self, sample: Sample, sample_id: int, epoch: int) -> Arrays:
        """See `Decoder`."""
        arrays: Arrays = {}
        for name, dtype in self._columns:
            value = sample[name]
            arrays[name] = value if isinstance(value, np.ndarray) else np.array(value, dtype)
        return arrays


class _Call(NamedTuple):
    """A function that the recipe names."""

    name: str
    function: Any
    options: Mapping[str, Any]


class _FunctionDecoder:
    """Calls a user's function with numbers of the columns' types."""

    def __init__(self, call: _Call, columns: Sequence[Column], seed: int, *, training: bool) -> None:
        name, function, options = call
        self._name = name
        self._what = f"data.decode {name}"
        self._function = function
        self._options = dict(options)
        self._dtypes = {c.name: np.dtype(c.dtype) for c in columns if is_array(c.dtype)}
        self._randomness = SampleRandomness(seed)
        if "training" in _parameters(function):
            self._options.setdefault("training", training)
        self._takes_rng = not _accepts(function, (None,), self._options)
        if self._takes_rng:
            _check_call(function, "data.decode", name, (None, None), self._options)

    def decode(self, sample: Sample, sample_id: int, epoch: int) -> Arrays:
        """See `Decoder`; DataError from an error of the function."""
        given = self._with_types(sample) if self._dtypes else sample
        try:
            if self._takes_rng:
                rng = self._randomness.generator(epoch, sample_id)
                arrays = self._function(given, rng, **self._options)
            else:
                arrays = self._function(given, **self._options)
        except Exception as error:  # a user's function may raise anything
            raise DataError(
                f"data.decode {self._name} raised {_describe(error)} at {_find_line(self._function, error)}",
                hint="mend the function",
            ) from error
        return check_arrays(arrays, self._what, self._dtypes)

    def _with_types(self, sample: Sample) -> Sample:
        given = dict(sample)
        for column, dtype in self._dtypes.items():
            if isinstance(given.get(column), int | float):
                given[column] = dtype.type(given[column])
        return given


def check_arrays(found: Any, what: str, dtypes: Mapping[str, "np.dtype[Any]"]) -> Arrays:
    """What a user's function gave, as a dict of arrays of numbers; DataError that names `what` otherwise.

    What is named as in `dtypes` and is no array yet becomes one of that type, where that fits.
    """
    if not found or not isinstance(found, dict | Mapping):
        raise DataError(
            f"{what} gave {type(found).__name__}, not a dict of arrays", hint="return {name: array}"
        )
    arrays: Arrays = {}
    for name, value in found.items():
        array = _as_array(value, str(name), what)
        wanted = None if array is value else dtypes.get(name)
        arrays[str(name)] = array if wanted is None or wanted == array.dtype else _cast(array, wanted)
    return arrays


def _as_array(value: Any, name: str, what: str) -> NDArray[Any]:
    if type(value) is np.ndarray and value.dtype.kind in _NUMBERS:
        return value
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise DataError(
            f"{what} gave {name!r}, which is no array: {error}",
            hint="give lists of equal length",
        ) from error
    if array.dtype.kind not in _NUMBERS:
        raise DataError(
            f"{what} gave {name!r} of type {type(value).__name__} ({array.dtype}), not numbers",
            hint="texts are made numbers (tokens, classes) by the function",
        )
    return array


def _cast(array: NDArray[Any], dtype: "np.dtype[Any]") -> NDArray[Any]:
    """As `dtype`, or as it is where that would cut fractions off or change whole numbers."""
    if array.size and _RANKS[array.dtype.kind] > _RANKS[dtype.kind]:
        return array
    cast = array.astype(dtype)
    return cast if dtype.kind == "f" or np.array_equal(cast, array) else array


def _describe(error: Exception) -> str:
    text = str(error)
    return f"{type(error).__name__}: {text if len(text) <= _MOST_WORDS else text[:_MOST_WORDS] + '…'}"


def _find_line(function: Any, error: Exception) -> str:
    """file:line, the last in the file of the user's function; the last of all where that has none."""
    lines = [(frame.f_code.co_filename, line) for frame, line in walk_tb(error.__traceback__)]
    code = getattr(inspect.unwrap(function), "__code__", None)
    own = [found for found in lines if code is not None and found[0] == code.co_filename]
    file, line = (own or lines)[-1]
    return f"{file}:{line}"


def _needs_decoder(column: Column) -> DataError:
    picture = column.dtype in ("jpeg", "png") or column.name == IMAGE
    name = IMAGE if picture else "package.module:function"
    return DataError(
        f"the column {column.name!r} holds {column.dtype}, which is no array",
        hint=f"set data.decode: {name}, which makes arrays of a sample",
    )


def _misfit(name: str, first: NDArray[Any], array: NDArray[Any] | None, number: int) -> DataError:
    if array is None:
        return DataError(f"sample {number} of the micro-batch has no {name!r}, sample 0 has")
    return DataError(
        f"{name!r} of sample {number} of the micro-batch is {array.dtype} {array.shape}, of sample 0 "
        f"{first.dtype} {first.shape}: they cannot be stacked",
        hint="give all the same shape in data.decode (image: set a size), or pad them in data.collate",
    )


def _parameters(function: Callable[..., Any]) -> list[str]:
    try:
        return list(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # built in, or not callable, which is told when it is called
        return []


def _accepts(function: Any, arguments: tuple[Any, ...], options: Mapping[str, Any]) -> bool:
    """Whether the function says that it can be called so."""
    try:
        inspect.signature(function).bind(*arguments, **options)
    except (TypeError, ValueError):
        return False
    return True


def _check_call(
    function: Any, where: str, name: str, arguments: tuple[Any, ...], options: Mapping[str, Any]
) -> None:
    """RecipeError unless the function can be called so."""
    if not callable(function):
        raise RecipeError(f"{where}: {name} is {type(function).__name__}, not a function")
    try:
        inspect.signature(function).bind(*arguments, **options)
    except ValueError:  # a built-in that tells nothing
        return
    except TypeError as error:
        wanted = "a sample, a numpy Generator and data.decode_options" if len(arguments) == 2 else "a list"
        raise RecipeError(f"{where}: {name} cannot be called with {wanted}: {error}") from error
