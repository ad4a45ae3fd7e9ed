"""A build of samples; see `Job`."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from torchrelay.core.errors import DataError
from torchrelay.data.build.division import check_shares
from torchrelay.data.build.document import Intake, OnBad
from torchrelay.data.build.files import hash_parts
from torchrelay.data.build.job import MakePool, Plan, ReportRead, Settings
from torchrelay.data.build.journal import Progress
from torchrelay.data.build.pool import run_all
from torchrelay.data.build.request import SHARD_BYTES, UNIT_BYTES, check_sizes, name_shares
from torchrelay.data.build.sample_columns import SampleOptions
from torchrelay.data.build.sample_input import SampleInput, SampleUnit
from torchrelay.data.build.sample_maker import SampleSpec, SampleSurveySetup, SampleSurveyTask
from torchrelay.data.build.sample_plan import SamplePlan, choose_label, encode_unit, make_plan
from torchrelay.data.build.sample_survey import Survey
from torchrelay.data.build.share_check import name_count
from torchrelay.data.build.split_check import name_places
from torchrelay.data.build.workbench import Spec
from torchrelay.data.manifest import Content, ShardEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRequest:
    """What to build of samples. The first group decides the version; the second only how it is made."""

    sources: Sequence[SampleInput]
    """Read one after the other; the first one tells classes and label."""
    options: SampleOptions = SampleOptions()
    validation: float = 0.05
    """Share for validation, 0 to below 1; not used for samples of which the input gives the split."""
    test: float = 0.0
    """Share for the test split, likewise."""
    shard_bytes: int = SHARD_BYTES
    """Most bytes of samples in one shard, 1 KiB to 1 GiB."""

    shares_asked: bool = False
    """Whether somebody named the shares; an input that gives the splits itself is then refused."""
    on_bad: OnBad = "stop"
    """Whether a bad sample ends the build or is left out, counted and listed."""
    processes: int = 1
    """Processes that read and write; 1: all is done in this one."""
    work: Path | None = None
    """Folder on a local disk in which the build makes one of its own; None: as for documents."""


def check_sample_request(request: SampleRequest) -> None:
    """DataError when the request cannot be carried out whatever the input is."""
    check_shares(request.validation, request.test)
    check_sizes(request.shard_bytes, request.processes, UNIT_BYTES)


class SampleJob:
    """What a `SampleRequest` asks for."""

    def __init__(self, request: SampleRequest) -> None:
        """`request` was checked."""
        self._request = request
        self.settings = Settings(
            phase="encoding",
            processes=request.processes,
            on_bad=request.on_bad,
            unit_bytes=UNIT_BYTES,
            work=request.work,
            noun="sample",
            shares_asked=request.shares_asked,
        )
        self._units: list[SampleUnit] | None = None
        self._plan: SamplePlan | None = None

    @property
    def given(self) -> bool:
        """See `Job`."""
        return any(unit.split is not None for unit in self._list())

    @property
    def shares(self) -> Mapping[str, float]:
        """See `Job`."""
        return {} if self.given else name_shares(self._request.validation, self._request.test)

    def identity(self) -> Mapping[str, Any]:
        """See `Job`; what is left out may decide the columns, so it counts here."""
        ids = hash_parts(*(unit.id for unit in self._list()))
        return {**self.describe(), "input": ids, "on_bad": self.settings.on_bad}

    def describe(self) -> dict[str, Any]:
        """See `Job`."""
        request, options = self._request, self._request.options
        sources = [source.describe() for source in request.sources]
        named = {
            "label_field": options.label_column,
            "id_field": options.id_column,
            "ragged": sorted(options.ragged),
            "column_types": dict(options.types),
        }
        shares = {} if self.given else {"validation": request.validation, "test": request.test}
        return {
            **sources[0],
            **({"more": sources[1:]} if sources[1:] else {}),
            **{name: value for name, value in named.items() if value},
            **shares,
            "shard_bytes": request.shard_bytes,
        }

    def total_bytes(self) -> int | None:
        """See `Job`."""
        return sum(unit.size for unit in self._list())

    def units(self) -> Iterator[SampleUnit]:
        """See `Job`."""
        return iter(self._list())

    def plan(self, work: Path, make_pool: MakePool, report: ReportRead) -> Plan:
        """See `Job`: all samples are read once to find the columns and classes."""
        request = self._request
        setup = SampleSurveySetup(
            label=choose_label(request.sources[0], request.options), on_bad=self.settings.on_bad, work=work
        )
        survey = _survey(setup, self._list(), make_pool, report)
        self._plan = make_plan(
            survey,
            request.sources[0],
            request.options,
            validation=request.validation,
            test=request.test,
        )
        return Plan(SampleSpec(plan=self._plan, shard_bytes=request.shard_bytes), None, self._plan.notes)

    def content(self, spec: Spec, splits: Mapping[str, tuple[ShardEntry, ...]]) -> Content:
        """See `Job`."""
        plan = cast(SampleSpec, spec).plan
        return Content(
            kind="samples",
            format="mds",
            splits=splits,
            columns=plan.columns,
            label_names=plan.label_names,
        )

    def nothing_for(self, split: str, progress: Progress, distinct: int | None) -> DataError:
        """See `Job`."""
        shares = " and ".join(f"{share * 100:.3g}% for {name}" for name, share in self.shares.items())
        left = f"; {progress.problems:,} bad ones were left out" if progress.problems else ""
        count = progress.documents
        more = "different samples" if distinct is not None and distinct < count else "samples"
        return DataError(
            f"the {split} split would be empty: {name_count(count, distinct, 'sample')}, "
            f"{shares or 'splits as given'}{left}",
            hint=f"add {more}, or change --validation (0% for none)",
        )

    def shared_id(self, shared: tuple[int, str, str], work: Path) -> DataError:
        """See `Job`."""
        assert self._plan is not None
        intake = Intake(on_bad="skip", scratch=work)
        found = (
            (made.split, made.sample_id, unit.where)
            for unit in self._list()
            for made in encode_unit(unit, self._plan, intake)
        )
        return name_places(shared, found)

    def _list(self) -> list[SampleUnit]:
        if self._units is None:
            self._units = [unit for source in self._request.sources for unit in source.units()]
        return self._units


def _survey(
    setup: SampleSurveySetup, units: Sequence[SampleUnit], make_pool: MakePool, report: ReportRead
) -> Survey:
    """What is seen in all units; put together in their order, whatever the order in which they come."""
    survey = Survey(setup.label)
    waiting: dict[int, Survey] = {}
    merged = read = 0
    tasks = (SampleSurveyTask(number, unit) for number, unit in enumerate(units))
    for task, result in run_all(make_pool(setup), tasks):
        waiting[task.number] = result
        read += task.unit.size
        report(read)
        while merged in waiting:
            survey.merge(waiting.pop(merged))
            merged += 1
    return survey
