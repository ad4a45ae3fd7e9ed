"""Samples from a user's own code: `package.module:function` gives an iterable of dicts."""

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from typing import Any

from torchrelay.core.errors import DataError
from torchrelay.data.build.document import show
from torchrelay.data.build.files import hash_parts
from torchrelay.data.build.sample_image import png_of
from torchrelay.data.build.sample_input import BadSample, ImageBytes, RawSample
from torchrelay.data.build.user_code import UserCode, call_function, iterate, load_function

_ROWS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class IterableUnit:
    """Samples [start, stop) of what the function gives; see `SampleUnit`."""

    reference: str
    options: Mapping[str, Any]
    start: int
    stop: int | None
    """None: to the end."""
    split: str | None

    @property
    def id(self) -> str:
        """See `SampleUnit.id`; the source of the function's module stands for what it does."""
        module = inspect.getmodule(load_function(self.reference))
        try:
            source = inspect.getsource(module) if module is not None else ""
        except OSError:
            source = ""
        options = sorted(self.options.items())
        return hash_parts("python", self.reference, options, self.start, self.stop, self.split, source)

    @property
    def where(self) -> str:
        """See `SampleUnit.where`."""
        return f"{self.reference} from sample {self.start} on"

    @property
    def size(self) -> int:
        """See `SampleUnit.size`; samples, as bytes are not known."""
        return (self.stop or 1) - self.start

    def prepared(self) -> "IterableUnit":
        """See `SampleUnit.prepared`."""
        return self

    def samples(self) -> Iterator[RawSample | BadSample]:
        """See `SampleUnit.samples`."""
        for number, sample in enumerate(self._items(), start=self.start):
            where = f"{self.reference}: sample {number}"
            if not isinstance(sample, Mapping):
                kind = f"the text {show(sample)}" if isinstance(sample, str) else type(sample).__name__
                yield BadSample(where, f"is {kind}, not a dict", "give dicts alone, or texts alone")
                continue
            values = {str(name): _plain(value) for name, value in sample.items()}
            yield RawSample(values, where, str(number))

    def preview(self) -> Iterator[RawSample | BadSample]:
        """See `SampleUnit.preview`."""
        return self.samples()

    def _items(self) -> Iterator[Any]:
        found = _call(self.reference, self.options)
        rows = found if self.stop is None else (found[number] for number in range(self.start, self.stop))
        return iterate(self.reference, rows, "sample", self.start)


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonSamples:
    """What a function gives; called once for every unit, and always to give the same. See `SampleInput`.

    A sequence is read by several processes, any other iterable by one. A sample is a dict of numbers,
    numpy arrays, texts, bytes, Pillow images, lists and dicts.
    """

    reference: str
    """`package.module:function`."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the function; plain JSON values."""
    split: str | None = None

    @property
    def default_label(self) -> str | None:
        """See `SampleInput.default_label`."""
        return None

    def units(self) -> Sequence[IterableUnit]:
        """See `SampleInput.units`."""
        found = _call(self.reference, self.options)
        if not isinstance(found, Sized) or not hasattr(found, "__getitem__"):
            return [self._unit(0, None)]
        with UserCode(f"the length of what {self.reference} gives"):
            length = len(found)
        return [self._unit(start, min(start + _ROWS, length)) for start in range(0, length, _ROWS)]

    def label_names(self) -> None:
        """See `SampleInput.label_names`; they are found by reading."""

    def describe(self) -> dict[str, Any]:
        """See `SampleInput.describe`."""
        return {"python": self.reference, **({"options": dict(self.options)} if self.options else {})}

    def _unit(self, start: int, stop: int | None) -> IterableUnit:
        return IterableUnit(
            reference=self.reference, options=self.options, start=start, stop=stop, split=self.split
        )


def _call(reference: str, options: Mapping[str, Any]) -> Any:
    found = call_function(reference, options)
    if isinstance(found, Mapping | str | bytes) or not (
        isinstance(found, Iterable) or hasattr(found, "__getitem__")
    ):
        raise DataError(f"{reference} gave {type(found).__name__}, not an iterable of dicts")
    return found


def _plain(value: Any) -> Any:
    """A Pillow image as its bytes; everything else as it is."""
    if hasattr(value, "save") and hasattr(value, "mode") and hasattr(value, "getbands"):
        return ImageBytes(png_of(value))
    return value
