"""From an input of samples to what a dataset of it would hold, without a store or processes."""

import io
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from torchrelay.data.build.document import Intake, OnBad
from torchrelay.data.build.sample_columns import SampleOptions
from torchrelay.data.build.sample_input import BadSample, RawSample, SampleInput
from torchrelay.data.build.sample_plan import (
    Encoded,
    SamplePlan,
    choose_label,
    encode_unit,
    make_plan,
    survey_unit,
)
from torchrelay.data.build.sample_survey import Survey
from torchrelay.data.formats.mds import SampleEncoder, encode_head, open_mds
from torchrelay.data.manifest import ShardEntry


class Built(NamedTuple):
    plan: SamplePlan
    samples: list[dict[str, Any]]
    encoded: list[Encoded]
    problems: list[str]

    @property
    def columns(self) -> dict[str, tuple[str, Any]]:
        return {column.name: (column.dtype, column.shape) for column in self.plan.columns}


def read_all(source: SampleInput) -> list[RawSample | BadSample]:
    return [sample for unit in source.units() for sample in unit.samples()]


def good(source: SampleInput) -> list[RawSample]:
    found = read_all(source)
    assert not [sample for sample in found if isinstance(sample, BadSample)]
    return [sample for sample in found if isinstance(sample, RawSample)]


def bad(source: SampleInput) -> list[BadSample]:
    return [sample for sample in read_all(source) if isinstance(sample, BadSample)]


def plan(source: SampleInput, **options: Any) -> SamplePlan:
    chosen = SampleOptions(**options)
    survey = Survey(choose_label(source, chosen))
    for unit in source.units():
        survey.merge(survey_unit(unit, survey.label, make_intake(chosen.on_bad)))
    return make_plan(survey, source, chosen, validation=0.3)


def build(source: SampleInput, **options: Any) -> Built:
    made = plan(source, **options)
    intake = make_intake(options.get("on_bad", "stop"))
    encoded = [item for unit in source.units() for item in encode_unit(unit, made, intake)]
    assert intake.documents == len(encoded)
    header = SampleEncoder(made.columns).header
    data = encode_head(header, [len(item.data) for item in encoded]) + b"".join(e.data for e in encoded)
    entry = ShardEntry(key="k", bytes=len(data), sha256="", xxh3_128="", samples=len(encoded))
    shard = open_mds(memoryview(data), entry, made.columns)
    return Built(made, [shard.sample(number) for number in range(len(shard))], encoded, intake.problems)


def make_intake(on_bad: OnBad = "stop") -> Intake:
    return Intake(on_bad=on_bad, scratch=Path())


def picture(kind: str = "JPEG", *, size: tuple[int, int] = (8, 6), seed: int = 0, mode: str = "RGB") -> bytes:
    """The bytes of an image file; `size` is width and height."""
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(buffer, kind)
    return buffer.getvalue()
