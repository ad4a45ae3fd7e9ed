import json
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.unit.train.support import Heard, open_course, recipe
from torchrelay.core.errors import CheckpointError
from torchrelay.train import finish
from torchrelay.train.finish import export_final
from torchrelay.train.loop import train
from torchrelay.train.session import Session


@pytest.fixture
def finished(tmp_path: Path) -> Session:
    session, course, _ = open_course(recipe(tmp_path))
    train(course, course.keeper.resume())
    return session


def test_the_last_checkpoint_becomes_the_final_model_with_where_it_came_from(
    finished: Session, tmp_path: Path
) -> None:
    heard = Heard()
    export_final(finished, heard)
    folder = tmp_path / "final-models/t"
    tensors = load_file(folder / "model.safetensors")
    for name, parameter in finished.engine.module.named_parameters():
        assert tensors[name].equal(parameter)
    lineage = json.loads((folder / "torchrelay.json").read_text())
    assert (lineage["run"], lineage["step"], lineage["dataset_version"]) == (
        "t",
        6,
        finished.training.plan.version,
    )
    (record,) = heard.kind("export")
    assert (record.step, record.where) == (6, f"file://{folder}")


def test_a_model_that_is_there_is_not_written_again(finished: Session, tmp_path: Path) -> None:
    export_final(finished, Heard())
    before = (tmp_path / "final-models/t/model.safetensors").stat().st_mtime_ns
    heard = Heard()
    export_final(finished, heard)
    assert heard.records == []
    assert (tmp_path / "final-models/t/model.safetensors").stat().st_mtime_ns == before


@pytest.mark.parametrize("content", [None, b"{", b"{}"])
def test_an_export_that_was_cut_off_is_made_again(
    finished: Session, tmp_path: Path, content: bytes | None
) -> None:
    export_final(finished, Heard())
    mark = tmp_path / "final-models/t/torchrelay.json"
    mark.unlink() if content is None else mark.write_bytes(content)
    heard = Heard()
    export_final(finished, heard)
    assert len(heard.kind("export")) == 1
    assert json.loads(mark.read_text())["step"] == 6


def test_a_full_disk_at_the_very_end_says_that_the_run_is_safe(
    finished: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(finish, "export_model", full)
    with pytest.raises(
        CheckpointError, match="finished, but its model could not be written .*No space"
    ) as caught:
        export_final(finished, Heard())
    assert caught.value.exit_code == 1
    assert "only the export is done then" in caught.value.hint


def test_a_run_without_a_checkpoint_has_nothing_to_export(tmp_path: Path) -> None:
    session, _, _ = open_course(recipe(tmp_path))
    with pytest.raises(CheckpointError, match="no checkpoint to export"):
        export_final(session, Heard())
