"""The recipes in examples/ are run: the small ones whole, the quickstart in short."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY, missing_tool

pytestmark = pytest.mark.ranks

SHAKESPEARE = REPOSITORY.parent / "shared" / "data" / "tinyshakespeare.txt"
TIMEOUT_S = 900


def _run(folder: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "torchrelay", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _validation(folder: Path, run: str) -> list[float]:
    lines = _run(folder, "journal", run, "--kind", "validation", "--json").splitlines()
    return [json.loads(line)["loss"] for line in lines]


def test_the_quickstart_learns_in_its_first_steps_and_writes_a_model(tmp_path: Path) -> None:
    library = Path(os.__file__).parent
    _run(tmp_path, "data", "build", "stdlib", "--text", f"{library}/json/*.py", "--split", "tail")
    recipe = str(REPOSITORY / "examples" / "quickstart.yaml")
    _run(
        tmp_path, "train", recipe, "--nproc", "2", "--set", "train.steps=12", "--set", "train.global_batch=4"
    )
    first, last = _validation(tmp_path, "quickstart")
    assert last < first - 0.5
    assert (tmp_path / "relay-store" / "final-models" / "quickstart" / "model.safetensors").exists()
    text = _run(tmp_path, "sample", "quickstart", "--prompt", "def ", "--tokens", "20")
    assert text.startswith("def ")


@pytest.mark.long
@pytest.mark.timeout(2 * TIMEOUT_S)
@pytest.mark.parametrize("nproc", [1, 2])
@pytest.mark.parametrize("seed", [1, 2])
def test_shakespeare_reaches_the_published_loss(tmp_path: Path, nproc: int, seed: int) -> None:
    if not SHAKESPEARE.exists():
        missing_tool(f"{SHAKESPEARE.name} is not beside this checkout")
    words = ("--tokenizer", "chars", "--split", "tail", "--validation", "10%")
    _run(tmp_path, "data", "build", "shakespeare_char", "--text", str(SHAKESPEARE), *words)
    recipe = str(REPOSITORY / "examples" / "shakespeare_char.yaml")
    _run(tmp_path, "train", recipe, "--nproc", str(nproc), "--set", f"run.seed={seed}")
    assert _validation(tmp_path, "shakespeare_char")[-1] <= 1.90
