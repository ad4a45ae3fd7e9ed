from pathlib import Path

import numpy as np

from tests.unit.data.build.sample_support import make_intake, plan
from tests.unit.data.build.test_sample_plan import Listed
from torchrelay.data.build.sample_maker import SampleSpec, SampleSurveySetup, SampleSurveyTask
from torchrelay.data.build.sample_plan import encode_unit
from torchrelay.data.build.shard_plan import Position, ShardPlanner
from torchrelay.data.build.staging import StagedSplit, StageWriter, staged_folder
from torchrelay.data.formats.mds import open_mds, parse_tail, tail_start
from torchrelay.store.base import Store


def test_staged_samples_make_the_same_shards_whatever_the_units(tmp_path: Path, store: Store) -> None:
    values = [{"n": n, "x": np.full(n % 7 + 1, n, np.int16)} for n in range(60)]
    source = Listed(values, split="train")
    spec = SampleSpec(plan=plan(source, ragged=["x"]), shard_bytes=200)
    maker = spec.open()
    expected = [item for item in encode_unit(source, spec.plan, make_intake())]
    keys = []
    for cut in (20, 60):
        work = tmp_path / str(cut)
        units = [Listed(values[start : start + cut], split="train") for start in range(0, 60, cut)]
        planner = ShardPlanner("train", spec.capacity, Position(), cuts=spec.cuts)
        plans = []
        for number, unit in enumerate(units):
            writer = StageWriter(work, number, unit)
            maker.stage(unit, make_intake(), writer)
            writer.close(make_intake())
            table = StagedSplit(staged_folder(work, number, unit.id) / "train").table
            plans += planner.add(number, table.sizes + spec.overhead, table.is_last)
        plans += planner.close()
        found, ids = [], []
        for shard in plans:
            parts = [StagedSplit(staged_folder(work, span.unit, "listed") / "train") for span in shard.spans]
            entry, shard_ids = maker.assemble(shard, parts, store, "f")
            data = store.get(f"f/{entry.key}")
            ids += shard_ids.tolist()
            told = parse_tail(data[tail_start(entry) :], entry.samples)
            assert told is not None and told.tolist() == shard_ids.tolist()
            opened = open_mds(memoryview(data), entry, spec.plan.columns)
            found += [opened.sample(k) for k in range(len(opened))]
            keys.append(entry.key)
        assert [(s["n"], s["x"].tolist()) for s in found] == [(v["n"], v["x"].tolist()) for v in values]
        assert ids == [item.sample_id for item in expected]
        assert len(plans) > 5
    half = len(keys) // 2
    assert keys[:half] == keys[half:]


def test_a_survey_is_made_by_what_a_process_is_told(tmp_path: Path) -> None:
    setup = SampleSurveySetup(label="k", on_bad="skip", work=tmp_path)
    unit = Listed([{"k": "a"}, {"k": None}, {"k": "b"}], broken={1})
    task = SampleSurveyTask(0, unit)
    assert task.where == "listed"
    survey = setup.open()(task)
    assert survey.samples == 2 and list(survey.classes) == ["a", "b"]
