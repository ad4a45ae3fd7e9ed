"""The main process of a build: gives out units and shards, and keeps the order.

Units are staged by any process in any order and cut into shards in the order of the input, so the
result does not depend on the processes. Staged units that wait are bounded.
"""

import shutil
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Set
from dataclasses import dataclass
from typing import Any, NamedTuple

from torchrelay.core.errors import DataError
from torchrelay.data.build.journal import Journal, Progress, read_units
from torchrelay.data.build.pool import Done, Pool
from torchrelay.data.build.shard_plan import Position, ShardPlan, ShardPlanner
from torchrelay.data.build.staging import StagedSplit, UnitReport, find_staged, staged_folder
from torchrelay.data.build.workbench import BenchSetup, ShardTask, StageTask
from torchrelay.data.manifest import ShardEntry


class Status(NamedTuple):
    """How far a build is."""

    phase: str
    """What is being done."""
    done: int
    """Bytes of input, about."""
    total: int | None
    """Bytes of all the input, about; None where that is not known."""
    documents: int = 0
    items: int = 0
    """Tokens, or bytes of samples."""
    shards: int = 0
    """Written."""
    is_resumed: bool = False
    """Whether this tells what an earlier process of the same build left; told once, before all others."""


Report = Callable[[Status], None]


class NotWholeError(Exception):
    """The work folder lacks what its journal tells; the build must begin anew."""


@dataclass(slots=True)
class _Live:
    """A unit of which something is not in shards yet."""

    folder: str
    where: str
    splits: set[str]


class Merge:
    """Turns units into shards. One thread; `pool` runs the tasks of `setup`."""

    def __init__(self, setup: BenchSetup, journal: Journal, pool: Pool, window: int) -> None:
        """`window`: most units that are staged, or being staged, ahead of the one to be cut next."""
        self._setup = setup
        self._journal = journal
        self._pool = pool
        self._window = window
        self._planners: dict[str, ShardPlanner] = {}
        self._live: dict[int, _Live] = {}
        self._waiting: dict[str, deque[int]] = {}  # units of which a split is not in shards yet, in order
        self._staged: dict[int, UnitReport] = {}  # these must wait for one before them
        self._plans: deque[ShardTask] = deque()
        self._made: dict[tuple[str, int], tuple[ShardEntry, Position]] = {}  # likewise
        self._next_unit = 0
        self._items = 0
        self._closed = False
        self._check: Callable[[Set[str], Progress], None] | None = None

    def run(
        self,
        units: Iterator[Any],
        check: Callable[[Set[str], Progress], None],
        report: Callable[[int, int], None],
    ) -> None:
        """Do all there is to do.

        `check` is called once all units are cut, before what is left becomes the last shards, with the
        splits that have anything. `report` is called with items and shards done, again and again.
        """
        self._check = check
        units = self._resume(units)
        while True:
            while self._pool.idle and (task := self._next_task(units)) is not None:
                self._pool.submit(task)
            if not self._pool.busy:
                return
            for done in self._pool.collect():
                self._take(done)
            report(self._items, sum(map(len, self._journal.progress.entries.values())))

    def _resume(self, units: Iterator[Any]) -> Iterator[Any]:
        """The units that are left, after those in the journal were taken as they are."""
        for report in read_units(self._setup.work):
            unit = next(units, None)
            if unit is None or unit.id != report.id:
                raise DataError(
                    f"{report.where} is not what it was when this build was first started",
                    hint=f"delete {self._setup.work} to begin anew; a function must always give the same",
                )
            self._cut(self._next_unit, report)
            self._next_unit += 1
        return units

    def _next_task(self, units: Iterator[Any]) -> ShardTask | StageTask | None:
        while not self._plans and not self._closed:
            planned = self._journal.progress.units
            if self._next_unit - planned >= self._window:
                return None
            unit = next(units, None)
            if unit is None:
                if self._next_unit > planned:
                    return None  # the last ones are being staged
                self._close()
                break
            number = self._next_unit
            self._next_unit += 1
            staged = find_staged(self._setup.work, number, unit.id)
            if staged is None:
                return StageTask(number, unit.prepared())
            self._add_staged(number, staged)
        return self._plans.popleft() if self._plans else None

    def _take(self, done: Done) -> None:
        if isinstance(done.task, StageTask):
            self._add_staged(done.task.number, done.result)
        else:
            plan = done.task.plan
            self._made[plan.split, plan.first.shards] = (done.result, plan.after)
            self._commit(plan.split)

    def _add_staged(self, number: int, report: UnitReport) -> None:
        self._staged[number] = report
        while (planned := self._journal.progress.units) in self._staged:
            report = self._staged.pop(planned)
            self._journal.add_unit(report)
            self._cut(planned, report)

    def _cut(self, number: int, report: UnitReport) -> None:
        """Cut the unit into shards, but for what is in shards already."""
        self._items += sum(report.items.values())
        folder = staged_folder(self._setup.work, number, report.id)
        needed = {split for split in report.items if number >= self._position(split).unit}
        for split in report.items.keys() - needed:
            (folder / split).unlink(missing_ok=True)
        if not needed:
            shutil.rmtree(folder, ignore_errors=True)
            return
        self._live[number] = _Live(folder.name, report.where, set(needed))
        overhead = self._setup.spec.overhead
        for split in sorted(needed):
            self._waiting.setdefault(split, deque()).append(number)
            if not (folder / split).exists():
                raise NotWholeError
            table = StagedSplit(folder / split).table
            self._plan(self._planner(split).add(number, table.sizes + overhead, table.is_last))

    def _close(self) -> None:
        self._closed = True
        progress = self._journal.progress
        if self._check is not None:
            self._check(self._planners.keys() | progress.entries.keys(), progress)
        for _, planner in sorted(self._planners.items()):
            self._plan(planner.close())

    def _plan(self, plans: Iterable[ShardPlan]) -> None:
        for plan in plans:
            units = [self._live[span.unit] for span in plan.spans]
            folders = tuple(unit.folder for unit in units)
            self._plans.append(ShardTask(plan, folders, tuple(unit.where for unit in units)))

    def _commit(self, split: str) -> None:
        """Note the shards that are complete in order, and drop what they needed."""
        while (found := self._made.pop((split, self._position(split).shards), None)) is not None:
            entry, after = found
            self._journal.add_shard(split, entry, after)
            waiting = self._waiting[split]
            while waiting and waiting[0] < after.unit:
                self._drop(waiting.popleft(), split)

    def _drop(self, number: int, split: str) -> None:
        unit = self._live[number]
        folder = self._setup.work / unit.folder
        unit.splits.discard(split)
        if unit.splits:
            (folder / split).unlink(missing_ok=True)
        else:
            shutil.rmtree(folder, ignore_errors=True)
            del self._live[number]

    def _position(self, split: str) -> Position:
        return self._journal.progress.positions.get(split, Position())

    def _planner(self, split: str) -> ShardPlanner:
        if split not in self._planners:
            spec = self._setup.spec
            self._planners[split] = ShardPlanner(split, spec.capacity, self._position(split), cuts=spec.cuts)
        return self._planners[split]
