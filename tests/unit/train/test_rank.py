import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch.distributed as dist

from tests.unit.parallel.test_world import environment
from tests.unit.train.support import recipe
from torchrelay.core.errors import ExitCode, NumericsError
from torchrelay.observe.failure import read_announced
from torchrelay.observe.journal import read_journal
from torchrelay.store.files import FileStore
from torchrelay.train.rank import run_rank


@pytest.fixture(autouse=True)
def signals_as_before() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, old in before.items():
        signal.signal(number, old)


def kinds(folder: Path) -> list[str]:
    return [record["kind"] for record in read_journal(FileStore(folder), "t")]


def test_one_rank_trains_saves_exports_and_leaves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    errors = tmp_path / "errors"
    errors.mkdir()
    code = run_rank(recipe(tmp_path / "store"), environment(error_folder=str(errors)), fresh=False)
    assert code == ExitCode.DONE
    assert not dist.is_initialized()
    written = kinds(tmp_path / "store")
    assert written[:2] == ["start", "validation"]
    assert written[-2:] == ["stop", "export"]
    assert written.count("step") == 6
    assert read_announced(errors) == ("t", 1)
    assert json.loads((tmp_path / "store/final-models/t/torchrelay.json").read_text())["step"] == 6
    out = capsys.readouterr().out
    assert "run t  attempt 1  2 parameters  1 process on cpu (ddp)  micro-batch 2 × 2" in out
    assert "step 6/6" in out


def test_sample_ids_are_only_recorded_where_the_recipe_asks(tmp_path: Path) -> None:
    run_rank(recipe(tmp_path / "a"), environment(), fresh=False)
    run_rank(recipe(tmp_path / "b", observe={"sample_log": True}), environment(), fresh=False)
    assert "samples" not in kinds(tmp_path / "a")
    records = [r for r in read_journal(FileStore(tmp_path / "b"), "t") if r["kind"] == "samples"]
    assert [(r["step"], r["rank"], len(r["ids"])) for r in records] == [(step, 0, 4) for step in range(1, 7)]


def test_a_failure_is_in_the_journal_and_the_world_is_left(tmp_path: Path) -> None:
    wanted = recipe(tmp_path, model={"options": {"bad": 5.0}})
    with pytest.raises(NumericsError):
        run_rank(wanted, environment(), fresh=False)
    assert not dist.is_initialized()
    last = list(read_journal(FileStore(tmp_path), "t"))[-1]
    assert (last["kind"], last["error"], last["exit_code"], last["attempt"]) == (
        "error",
        "NumericsError",
        93,
        1,
    )
    assert not (tmp_path / "final-models").exists()
