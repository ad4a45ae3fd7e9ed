"""What one process of a build does: survey a unit, stage it, or put a shard together."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from torchrelay.data.build.division import Division
from torchrelay.data.build.document import Intake, OnBad
from torchrelay.data.build.shard_plan import ShardPlan
from torchrelay.data.build.staging import StagedSplit, StageWriter, UnitReport
from torchrelay.data.build.token_maker import Survey, survey_unit
from torchrelay.data.build.token_shard import Assembled
from torchrelay.data.build.unit import Unit
from torchrelay.data.manifest import ShardEntry
from torchrelay.store.base import Store
from torchrelay.store.open import open_store


class Maker(Protocol):
    """Turns units into staged items, and those into shards: of tokens, or of samples. One thread."""

    def stage(self, unit: Any, intake: Intake, writer: StageWriter) -> None:
        """Read the unit and append what it holds; bad inputs go to `intake.refuse`."""

    def assemble(self, plan: ShardPlan, parts: Sequence[StagedSplit], store: Store, folder: str) -> Assembled:
        """Write the shard of a plan into `folder` of the store; `parts` belong to the plan's spans."""


class Spec(Protocol):
    """All that decides what a maker makes. Frozen, can be pickled."""

    @property
    def capacity(self) -> int:
        """Most items of a shard."""

    @property
    def cuts(self) -> bool:
        """Whether a document larger than a shard is cut; else it gets a shard of its own."""

    @property
    def overhead(self) -> int:
        """Items that every row takes in a shard besides its payload."""

    def open(self) -> Maker:
        """The maker; in the process that uses it."""


class SurveyTask(NamedTuple):
    """Read a unit beforehand."""

    number: int
    unit: Unit

    @property
    def where(self) -> str:
        """See `pool.Task`."""
        return self.unit.where


class StageTask(NamedTuple):
    """Stage a unit."""

    number: int
    unit: Any

    @property
    def where(self) -> str:
        """See `pool.Task`."""
        return str(self.unit.where)


class ShardTask(NamedTuple):
    """Put a shard together."""

    plan: ShardPlan
    folders: tuple[str, ...]
    """Folders of the staged units of the plan's spans, in their order."""
    unit_names: tuple[str, ...]

    @property
    def where(self) -> str:
        """See `pool.Task`."""
        return f"shard {self.plan.first.shards + 1} of {self.plan.split} ({', '.join(self.unit_names[:3])})"


@dataclass(frozen=True, slots=True, kw_only=True)
class SurveySetup:
    """What a process must know to survey units; see `pool.Setup`."""

    division: Division
    on_bad: OnBad
    work: Path
    characters: bool

    def open(self) -> Callable[[SurveyTask], Survey]:
        """See `pool.Setup`."""
        return lambda task: survey_unit(
            task.unit,
            self.division,
            Intake(on_bad=self.on_bad, scratch=self.work),
            characters=self.characters,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchSetup:
    """What a process must know to stage units and write shards; see `pool.Setup`."""

    spec: Spec
    on_bad: OnBad
    work: Path
    """The build's folder on a local disk."""
    store_url: str
    folder: str
    """Folder of the dataset in the store."""
    keeps_ids: bool
    """Whether the ids of every shard are kept in the work folder."""

    def open(self) -> Callable[[StageTask | ShardTask], UnitReport | ShardEntry]:
        """See `pool.Setup`; opens the store by its URL."""
        return self.bench(open_store(self.store_url))

    def bench(self, store: Store) -> Callable[[StageTask | ShardTask], UnitReport | ShardEntry]:
        """The same on a store that is open."""
        maker = self.spec.open()

        def run(task: StageTask | ShardTask) -> UnitReport | ShardEntry:
            if isinstance(task, StageTask):
                return _stage(self, maker, task)
            return _assemble(self, maker, task, store)

        return run


def ids_path(work: Path, split: str, number: int) -> Path:
    """Where the ids of a shard are kept: u64, one after the other."""
    return work / "ids" / f"{split}-{number:06d}"


def _stage(setup: BenchSetup, maker: Maker, task: StageTask) -> UnitReport:
    intake = Intake(on_bad=setup.on_bad, scratch=setup.work)
    writer = StageWriter(setup.work, task.number, task.unit)
    try:
        maker.stage(task.unit, intake, writer)
        return writer.close(intake)
    finally:
        writer.discard()


def _assemble(setup: BenchSetup, maker: Maker, task: ShardTask, store: Store) -> ShardEntry:
    split = task.plan.split
    parts = [StagedSplit(setup.work / folder / split) for folder in task.folders]
    made = maker.assemble(task.plan, parts, store, setup.folder)
    if setup.keeps_ids:
        path = ids_path(setup.work, split, task.plan.first.shards)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(made.ids.tobytes())
    return made.entry
