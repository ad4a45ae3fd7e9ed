"""Import downward only, without side effects, and without torch where a command must start fast."""

import json
import os
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest

from tests.rules.source import PACKAGE, ROOT
from torchrelay.observe.rundir import RunRecord, create_run
from torchrelay.store.files import FileStore

LINTER = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
LADDER = next(contract["layers"] for contract in LINTER["contracts"] if contract["type"] == "layers")

_SIDE_EFFECTS = """\
import importlib, json, logging, os, pkgutil, sys
import torch, torch.distributed, torch.distributed.fsdp, torch.utils.checkpoint  # theirs, not ours
import torch.distributed.checkpoint, numpy, obstore, pydantic, typer, rich, safetensors
name = sys.argv[1]
def state():
    root = logging.getLogger()
    return [dict(os.environ), [repr(h) for h in root.handlers], root.level, torch.get_num_threads()]
before, found = state(), []
for module in pkgutil.walk_packages(importlib.import_module(name).__path__, f"{name}."):
    if module.name.endswith("__main__"):
        continue
    importlib.import_module(module.name)
    if state() != before:
        found.append(module.name)
        before = state()
print(json.dumps(found))
"""

_WITHOUT_TORCH = """\
import json, sys
from torchrelay.cli.app import run
code = run(sys.argv[1:])
print(json.dumps([code, sorted({"torch", "transformers"} & set(sys.modules))]))
"""


def run_python(program: str, *arguments: str, cwd: Path = ROOT, **environment: str) -> object:
    """The JSON that a fresh interpreter prints last."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=cwd,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("lint-imports")
    return subprocess.run(
        [str(program), "--no-cache"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def fake_package(folder: Path, **files: str) -> Path:
    """A package with every folder of the ladder; `core__a` is the file core/a.py."""
    package = folder / "torchrelay"
    for layer in [name.strip() for line in LADDER for name in line.split("|")]:
        (package / layer).mkdir(parents=True)
        (package / layer / "__init__.py").write_text("")
    (package / "__init__.py").write_text("")
    for name, text in files.items():
        (package / f"{name.replace('__', '/')}.py").write_text(text)
    (folder / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    return folder


def test_no_import_goes_upward() -> None:
    done = lint_imports(ROOT)
    assert done.returncode == 0, done.stdout


def test_every_folder_stands_on_the_ladder() -> None:
    steps = {name.strip() for line in LADDER for name in line.split("|")}
    assert steps == {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}


@pytest.mark.parametrize(
    ("files", "named"),
    [
        ({"core__a": "import torchrelay.cli"}, "torchrelay.core.a -> torchrelay.cli"),
        ({"store__a": "def f():\n    import torchrelay.recipe"}, "torchrelay.store.a -> torchrelay.recipe"),
        ({"observe__a": "import torch"}, "torchrelay.observe.a -> torch"),
    ],
    ids=["upward", "sideways", "torch"],
)
def test_an_import_that_is_not_allowed_is_found(tmp_path: Path, files: dict[str, str], named: str) -> None:
    assert lint_imports(fake_package(tmp_path / "good", core__a="import json")).returncode == 0
    done = lint_imports(fake_package(tmp_path / "bad", **files))
    assert done.returncode != 0
    assert named in done.stdout


def test_importing_any_module_changes_neither_environment_nor_logging() -> None:
    assert run_python(_SIDE_EFFECTS, "torchrelay") == []


def test_a_module_with_a_side_effect_is_found(tmp_path: Path) -> None:
    package = tmp_path / "relay_effects"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "quiet.py").write_text("import os\n")
    (package / "variable.py").write_text("import os\nos.environ['RELAY_EXAMPLE'] = '1'\n")
    (package / "logger.py").write_text("import logging\nlogging.basicConfig()\n")
    found = run_python(_SIDE_EFFECTS, "relay_effects", PYTHONPATH=str(tmp_path))
    assert found == ["relay_effects.logger", "relay_effects.variable"]


def recipe_in(folder: Path) -> Path:
    path = folder / "recipe.yaml"
    path.write_text(
        textwrap.dedent(
            """
            run: {name: mine}
            model: {decoder: {preset: 1m}}
            data: {dataset: d}
            train: {steps: 10, global_batch: 8}
            """
        )
    )
    return path


def store_with_a_run(folder: Path) -> Path:
    record = RunRecord(
        run="mine",
        name="mine",
        created_s=0.0,
        recipe={},
        recipe_hash="",
        dataset_version="",
        micro_batch=1,
        code="",
        environment={},
    )
    create_run(FileStore(folder / "store"), record)
    return folder / "store"


@pytest.mark.parametrize(
    "command", ["help", "check", "reference", "status", "journal", "checkpoint", "datasets", "init"]
)
def test_a_command_that_must_start_fast_does_not_import_torch(tmp_path: Path, command: str) -> None:
    store = str(store_with_a_run(tmp_path))
    arguments = {
        "help": ["--help"],
        "check": ["recipe", "check", str(recipe_in(tmp_path))],
        "reference": ["recipe", "reference"],
        "status": ["status", "mine", "--store", store],
        "journal": ["journal", "mine", "--store", store],
        "checkpoint": ["checkpoint", "list", "mine", "--store", store],
        "datasets": ["data", "list", "--store", store],
        "init": ["init", "new.yaml"],
    }[command]
    assert run_python(_WITHOUT_TORCH, *arguments, cwd=tmp_path) == [0, []]


def test_an_import_of_torch_is_found() -> None:
    assert run_python(f"import torch\n{_WITHOUT_TORCH}", "--help") == [0, ["torch"]]
