from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.train.support import recipe
from torchrelay.cli import train
from torchrelay.cli.app import run
from torchrelay.core.record import ErrorRecord
from torchrelay.launch.device import count_gpus
from torchrelay.launch.local import Outcome
from torchrelay.observe.journal import read_journal
from torchrelay.store.files import FileStore

CAUSE = ErrorRecord(
    attempt=0,
    rank=1,
    host="box7",
    error="ValueError",
    message="ValueError: no",
    hint="look at it",
    exit_code=1,
    traceback='Traceback\n  File "a.py", line 1, in f\n    g()\n  File "b.py", line 2, in g\nValueError: no',
)


def write_recipe(folder: Path, **sections: dict[str, Any]) -> Path:
    path = folder / "recipe.yaml"
    made = recipe(folder / "store", **sections).model_dump(mode="json", exclude_none=True)
    path.write_text(yaml.safe_dump(made))
    return path


def launched(monkeypatch: pytest.MonkeyPatch, **fields: Any) -> list[dict[str, Any]]:
    """Replace the launcher by one that only notes what it was asked for."""
    calls: list[dict[str, Any]] = []
    outcome = Outcome(
        **(
            {"exit_code": 0, "cause": None, "was_killed": False, "run": None, "attempt": 1, "log": None}
            | fields
        )
    )

    def run_local(arguments: list[str], **rest: Any) -> Outcome:
        calls.append({"arguments": arguments, **rest})
        return outcome

    monkeypatch.setattr(train, "run_local", run_local)
    return calls


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine with two GPUs, as the driver shows them."""
    driver = tmp_path / "driver"
    for number in range(2):
        (driver / f"0000:0{number}:00.0").mkdir(parents=True)
    monkeypatch.setattr(train, "count_gpus", lambda: count_gpus({}, driver))


@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize(("words", "processes"), [([], 2), (["--nproc", "1"], 1), (["--nproc", "2"], 2)])
def test_all_gpus_are_used_unless_told_otherwise(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: list[str], processes: int
) -> None:
    calls = launched(monkeypatch)
    assert run(["train", str(write_recipe(tmp_path)), *words]) == 0
    assert calls[0]["num_processes"] == processes


@pytest.mark.usefixtures("gpus")
def test_more_processes_than_gpus_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = launched(monkeypatch)
    assert run(["train", str(write_recipe(tmp_path)), "--nproc", "3"]) == 78
    errors = capsys.readouterr().err
    assert "--nproc 3, but this machine has 2 GPUs" in errors
    assert "hint: use --nproc 2 or fewer" in errors
    assert calls == []
    assert not (tmp_path / "store").exists()


def test_without_gpus_one_process_is_the_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(train, "count_gpus", lambda: 0)
    calls = launched(monkeypatch)
    for words in ([], ["--nproc", "7"]):
        assert run(["train", str(write_recipe(tmp_path)), *words]) == 0
    assert [call["num_processes"] for call in calls] == [1, 7]


def test_settings_store_and_fresh_reach_the_ranks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls = launched(monkeypatch)
    path, other = write_recipe(tmp_path), tmp_path / "other"
    words = ["--set", "train.steps=9", "--store", str(other), "--fresh", "--nproc", "1"]
    assert run(["train", str(path), *words]) == 0
    expected = [str(path), "--set", "train.steps=9", "--set", f"run.store={other}", "--fresh"]
    assert calls[0]["arguments"] == expected
    assert calls[0]["wishes"].keep_logs("t-2").parent == other / "runs/t-2/logs"


def test_a_failure_is_the_last_thing_printed_and_is_in_the_journal(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    launched(monkeypatch, exit_code=1, cause=CAUSE, run="t", attempt=3, log=tmp_path / "rank-00001.log")
    assert run(["train", str(write_recipe(tmp_path)), "--nproc", "1"]) == 1
    assert capsys.readouterr().err.splitlines() == [
        "error: rank 1 on box7 failed first: ValueError: no",
        'File "b.py", line 2, in g',
        "",
        "hint: look at it",
        f"log: {tmp_path / 'rank-00001.log'}",
    ]
    (record,) = read_journal(FileStore(tmp_path / "store"), "t")
    assert (record["kind"], record["rank"], record["attempt"]) == ("error", 1, 3)


def test_a_journal_that_cannot_be_written_does_not_hide_the_failure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    launched(monkeypatch, exit_code=1, cause=CAUSE, run="t", log=tmp_path / "log")
    (tmp_path / "store/runs/t").mkdir(parents=True)
    (tmp_path / "store/runs/t/journal").write_text("not a folder")
    assert run(["train", str(write_recipe(tmp_path)), "--nproc", "1"]) == 1
    assert "rank 1 on box7 failed first: ValueError: no" in capsys.readouterr().err


@pytest.mark.parametrize("code", [75, 93])
def test_the_exit_code_is_the_launchers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    launched(monkeypatch, exit_code=code)
    assert run(["train", str(write_recipe(tmp_path)), "--nproc", "1"]) == code
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("length", "advice"),
    [
        ({"steps": 6}, "--set train.steps=12"),
        ({"steps": None, "epochs": 1.5}, "--set train.epochs=3"),
    ],
)
def test_the_summary_says_where_everything_is_and_how_to_train_on(
    monkeypatch: pytest.MonkeyPatch,
    store: Path,
    trained: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    length: dict[str, Any],
    advice: str,
) -> None:
    launched(monkeypatch, run="t")
    assert run(["train", str(write_recipe(tmp_path, train=length)), "--nproc", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "run t is done: 6 steps, 24 samples"
    assert f"run              file://{store}/runs/t" in lines
    assert f"checkpoints      torchrelay checkpoint list t --store {store}" in lines
    assert f"final model      file://{trained}/final-models/t" in lines
    assert lines[-1] == f"train on         the same command with {advice}"
    assert not any("torchrelay sample" in line for line in lines)  # this model writes no text


def test_a_store_whose_path_looks_like_markup_is_shown_as_it_is(
    monkeypatch: pytest.MonkeyPatch, store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    launched(monkeypatch, run="t")
    odd = tmp_path / "[red]" / "store"
    odd.parent.mkdir()
    store.rename(odd)
    assert run(["train", str(write_recipe(odd.parent)), "--nproc", "1"]) == 0
    assert f"run              file://{odd}/runs/t" in capsys.readouterr().out


def test_a_layout_that_does_not_fit_the_processes_is_found_before_they_are_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = launched(monkeypatch)
    path = write_recipe(tmp_path, parallel={"shard": 2, "replicate": 2})
    assert run(["train", str(path), "--nproc", "3"]) == 78
    assert "parallel.replicate 2 × parallel.shard 2 = 4, but there are 3 processes" in capsys.readouterr().err
    assert calls == []
