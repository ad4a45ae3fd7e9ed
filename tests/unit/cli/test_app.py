import subprocess
import sys
from pathlib import Path

import pytest

from torchrelay import __version__
from torchrelay.cli import app
from torchrelay.cli.app import run
from torchrelay.core.errors import NumericsError


def test_help_names_every_command_with_a_line_of_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    for name in ("init", "data", "recipe", "train", "status", "journal", "checkpoint", "sample"):
        assert f" {name} " in out
    assert "Where a run stands." in out


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"torchrelay {__version__}\n"


@pytest.mark.parametrize(
    "words", [["trian"], ["train"], ["status", "--nope", "t"], ["train", "r", "--nproc", "0"]]
)
def test_a_command_line_that_cannot_be_read_is_2(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_an_error_of_ours_is_its_message_hint_and_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(chosen: str | None) -> None:
        raise NumericsError("loss is nan", hint="lower it")

    monkeypatch.setattr(app, "build_app", fail)
    assert run(["status", "t"]) == 93
    assert capsys.readouterr().err == "error: loss is nan\n\nhint: lower it\n"


def test_an_interrupt_is_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(chosen: str | None) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(app, "build_app", interrupt)
    assert run([]) == 130
    assert "interrupted" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [["--help"], ["status", "--help"], ["journal", "--help"], ["train", "--help"]]
)
def test_commands_that_must_start_fast_never_import_torch(words: list[str]) -> None:
    code = (
        "import sys\nfrom torchrelay.cli.app import run\n"
        f"run({words!r})\nassert 'torch' not in sys.modules, 'torch was imported'"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_reader_that_leaves_is_no_failure(trained: Path) -> None:
    words = ["journal", "t", "--store", str(trained)]
    code = f"import sys\nfrom torchrelay.cli.app import run\nsys.exit(run({words!r}))"
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.close()
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")


@pytest.mark.parametrize(
    ("words", "hint"),
    [(["stats"], "hint: commands are init, data"), (["status"], "hint: torchrelay status --help")],
)
def test_a_command_line_that_is_wrong_is_answered_with_a_hint(
    words: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words) == 2
    assert hint in capsys.readouterr().err
