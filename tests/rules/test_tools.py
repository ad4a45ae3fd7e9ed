"""The formatter, the linter and the type checker say nothing. `make check` calls them directly."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.rules.source import ROOT


def run_tool(*command: str, cwd: Path = ROOT) -> tuple[int, str]:
    program = Path(sys.executable).with_name(command[0])
    done = subprocess.run(
        [str(program), *command[1:]],
        cwd=cwd,
        env=os.environ | {"NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("command", [("ruff", "format", "--check", "."), ("ruff", "check", "."), ("mypy",)])
def test_the_tool_has_nothing_to_say(command: tuple[str, ...]) -> None:
    code, output = run_tool(*command)
    assert code == 0, output


@pytest.mark.parametrize(
    ("command", "text", "said"),
    [
        (("ruff", "format", "--check", "."), "x  =  1\n", "would be reformatted"),
        (("ruff", "check", "."), '"""Doc."""\n\nimport os\n', "F401"),
        (("ruff", "check", "."), '"""Doc."""\n\n\ndef f() -> None:\n    pass\n', "D103"),
        (("mypy", "example.py"), "def f(x):\n    return x\n", "no-untyped-def"),
    ],
)
def test_the_tool_would_say_something(tmp_path: Path, command: tuple[str, ...], text: str, said: str) -> None:
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    (tmp_path / "src").mkdir()
    (tmp_path / "example.py").write_text(text)
    code, output = run_tool(*command, cwd=tmp_path)
    assert code != 0
    assert said in output
