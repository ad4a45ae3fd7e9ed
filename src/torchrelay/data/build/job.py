"""What a build needs to know of the kind of data it makes: tokens, or samples."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from torchrelay.core.errors import DataError
from torchrelay.data.build.document import OnBad
from torchrelay.data.build.journal import Progress
from torchrelay.data.build.pool import Pool, Setup
from torchrelay.data.build.workbench import Spec
from torchrelay.data.manifest import Content, ShardEntry

MakePool = Callable[[Setup], Pool]
ReportRead = Callable[[int], None]
"""Called with bytes of input that were read in a pass before the last one."""


class Plan(NamedTuple):
    """What had to be known of the whole input before the first shard."""

    spec: Spec
    tokenizer_file: bytes | None
    notes: tuple[str, ...] = ()
    """What is stored otherwise than it came, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a build is done; decides nothing of the result but what is left out."""

    phase: str
    """What the last pass does, in a word."""
    processes: int
    on_bad: OnBad
    unit_bytes: int
    """Bytes of input of one unit, about."""
    work: Path | None
    """Folder for the work folder; None: the cache's."""
    noun: str
    """What is divided between the splits: a document, or a sample."""
    shares_asked: bool
    """Whether somebody named the shares: they must then not be told by the input."""
    divides_whole: bool = True
    """Whether a hash divides whole documents, so that equal ones go together."""


class Job(Protocol):
    """What is asked for, for one kind of data."""

    settings: Settings
    """How it is to be done."""

    @property
    def given(self) -> bool:
        """Whether the input says which split everything belongs to."""

    @property
    def shares(self) -> Mapping[str, float]:
        """The share of every split that must get something, without train."""

    def identity(self) -> Mapping[str, Any]:
        """All that decides what a work folder holds, but store and name."""

    def describe(self) -> dict[str, Any]:
        """The arguments for the build record."""

    def total_bytes(self) -> int | None:
        """Sum of the sizes of all units, about; None where that is not known."""

    def units(self) -> Iterator[Any]:
        """All units, in order."""

    def plan(self, work: Path, make_pool: MakePool, report: ReportRead) -> Plan:
        """Look the input through as far as the plan needs it."""

    def content(self, spec: Spec, splits: Mapping[str, tuple[ShardEntry, ...]]) -> Content:
        """What the version is made of."""

    def nothing_for(self, split: str, progress: Progress, distinct: int | None) -> DataError:
        """The input has nothing for a split that must get something; `distinct`: see `count_distinct`."""

    def shared_id(self, shared: tuple[int, str, str], work: Path) -> DataError:
        """An id is in two splits that were given."""
