"""What inputs of samples have in common: units of work that any process can read on its own.

An input lists its units once, in order; a unit gives the same samples in the same order every time it
is read, here or in another process. Nothing is decided here about columns or splits.
"""

import importlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from torchrelay.core.errors import DataError

UNIT_BYTES = 64 * 2**20
"""Input bytes of one unit, about, where an input can be divided."""
UNIT_FILES = 1000
"""Most files of one unit."""


class ImageBytes(bytes):
    """The bytes of an image file, of whatever type."""


class Cell(str):
    """A field of a text table; what it is a text or a number of is found by reading all of them."""


class RawSample(NamedTuple):
    """One sample as it came."""

    values: Mapping[str, Any]
    """By column: numbers, numpy arrays, texts, bytes, lists, dicts, `Cell` or `ImageBytes`."""
    where: str
    """File and row, for errors."""
    key: str
    """What the input calls it: a path, or a row of a file."""


class BadSample(NamedTuple):
    """Something that cannot become a sample."""

    where: str
    why: str
    hint: str = ""

    def error(self) -> DataError:
        """For a build that stops at it."""
        return DataError(f"{self.where}: {self.why}", hint=self.hint)


class SampleUnit(Protocol):
    """A part of the input, small enough to be read again after a crash. Can be pickled."""

    @property
    def id(self) -> str:
        """Hash of all that decides its samples: files with size and time, range, options."""

    @property
    def where(self) -> str:
        """What it is, for errors."""

    @property
    def split(self) -> str | None:
        """The split that its samples are given to, or None where a hash decides."""

    @property
    def size(self) -> int:
        """Bytes of input, about."""

    def prepared(self) -> "SampleUnit":
        """The unit itself; all units of samples are ready to be read anywhere."""

    def samples(self) -> Iterator[RawSample | BadSample]:
        """Its samples in order. DataError only when nothing of it can be read."""

    def preview(self) -> Iterator[RawSample | BadSample]:
        """Its samples in order; of images only the first bytes, where that is less to read."""


class SampleInput(Protocol):
    """Where samples come from."""

    @property
    def default_label(self) -> str | None:
        """The column that holds the class where there is such a column and none is asked for."""

    def units(self) -> Sequence[SampleUnit]:
        """All units in order. DataError when there is nothing to read."""

    def label_names(self) -> tuple[str, ...] | None:
        """Names of the classes where the input tells them itself, in their order."""

    def describe(self) -> dict[str, Any]:
        """The arguments it was made from, for the build record."""


def import_package(name: str, what: str) -> Any:
    """An optional package; DataError that tells how to install it. `what` needs it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        package = {"PIL": "pillow"}.get(name.partition(".")[0], name.partition(".")[0])
        raise DataError(
            f"{what} needs the package {package}", hint="pip install 'torchrelay[data]'"
        ) from error
