"""Where documents come from: inputs, and the pieces of work that any process can do of them."""

from collections.abc import Iterator
from typing import Any, Protocol

from torchrelay.data.build.division import Division, Piece
from torchrelay.data.build.document import Intake


class Unit(Protocol):
    """A part of an input that one process reads. Frozen, can be pickled."""

    @property
    def id(self) -> str:
        """Hash of all that decides what is read."""

    @property
    def where(self) -> str:
        """What it is, for errors."""

    @property
    def size(self) -> int:
        """Bytes of input, about."""

    def prepared(self) -> "Unit":
        """The unit with all it needs to know of the rest of the input; called in the main process."""

    def pieces(self, division: Division, intake: Intake) -> Iterator[Piece]:
        """What is read, in order. What is bad goes to `intake.refuse`."""


class Input(Protocol):
    """A source of documents."""

    @property
    def labelled(self) -> bool:
        """Whether every document has a label."""

    @property
    def given(self) -> bool:
        """Whether every document says which split it belongs to."""

    def fingerprint(self) -> str:
        """Hash that changes when a file of the input does; DataError when there is no input."""

    def total_bytes(self) -> int | None:
        """Sum of the sizes of all units, about; None where that is not known."""

    def units(self, division: Division, unit_bytes: int) -> Iterator[Unit]:
        """All units, in the order of their documents, none much larger than `unit_bytes` if it can be cut."""

    def describe(self) -> dict[str, Any]:
        """The arguments it was made from, for the build record."""
