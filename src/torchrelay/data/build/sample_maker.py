"""How samples are surveyed, staged and put into shards by the processes of a build."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from torchrelay.data.build.document import Intake, OnBad
from torchrelay.data.build.sample_input import SampleUnit
from torchrelay.data.build.sample_plan import SamplePlan, encode_unit, survey_unit
from torchrelay.data.build.sample_survey import Survey
from torchrelay.data.build.sample_writer import HEADER_BYTES, SAMPLE_BYTES, ShardContent, write_sample_shard
from torchrelay.data.build.shard_plan import ShardPlan
from torchrelay.data.build.staging import Row, StagedSplit, StageWriter
from torchrelay.data.build.token_shard import Assembled
from torchrelay.data.formats.mds import SampleEncoder
from torchrelay.store.base import Store


class SampleSurveyTask(NamedTuple):
    """Read a unit beforehand."""

    number: int
    unit: SampleUnit

    @property
    def where(self) -> str:
        """See `pool.Task`."""
        return self.unit.where


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSurveySetup:
    """What a process must know to survey units of samples; see `pool.Setup`."""

    label: str | None
    """See `sample_plan.choose_label`."""
    on_bad: OnBad
    work: Path

    def open(self) -> Callable[[SampleSurveyTask], Survey]:
        """See `pool.Setup`."""
        return lambda task: survey_unit(task.unit, self.label, Intake(on_bad=self.on_bad, scratch=self.work))


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSpec:
    """All that a process needs to know to encode samples and put them into shards; see `workbench.Spec`."""

    plan: SamplePlan
    shard_bytes: int
    """Most bytes of a shard of several samples."""

    @property
    def capacity(self) -> int:
        """See `workbench.Spec`."""
        return max(1, self.shard_bytes - len(SampleEncoder(self.plan.columns).header) - HEADER_BYTES)

    @property
    def overhead(self) -> int:
        """See `workbench.Spec`."""
        return SAMPLE_BYTES

    @property
    def cuts(self) -> bool:
        """See `workbench.Spec`."""
        return False

    def open(self) -> "SampleMaker":
        """See `workbench.Spec`."""
        return SampleMaker(self.plan)


class SampleMaker:
    """Stages units as encoded samples and puts them together; see `workbench.Maker`."""

    def __init__(self, plan: SamplePlan) -> None:
        self._plan = plan
        self._header = SampleEncoder(plan.columns).header

    def stage(self, unit: SampleUnit, intake: Intake, writer: StageWriter) -> None:
        """See `workbench.Maker`."""
        for split, sample_id, data in encode_unit(unit, self._plan, intake):
            writer.append(split, data, Row(len(data), 0, sample_id, 0, is_last=True))

    def assemble(self, plan: ShardPlan, parts: Sequence[StagedSplit], store: Store, folder: str) -> Assembled:
        """See `workbench.Maker`."""
        pieces, sizes, ids = [], [], []
        for span, staged in zip(plan.spans, parts, strict=True):
            taken = np.cumsum(staged.table.sizes + SAMPLE_BYTES)
            first, stop = np.searchsorted(taken, (span.start, span.stop), "right")
            ends = np.concatenate(([0], np.cumsum(staged.table.sizes)))
            pieces.append(staged.payload(int(ends[first]), int(ends[stop])))
            sizes += staged.table.sizes[first:stop].tolist()
            ids.append(staged.table.ids[first:stop])
        content = ShardContent(pieces, sizes, np.concatenate(ids))
        return Assembled(write_sample_shard(store, folder, self._header, content), content.ids)
