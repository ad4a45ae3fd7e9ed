from pathlib import Path

import pytest

from torchrelay.cli.app import run
from torchrelay.cli.recipe import reference_page
from torchrelay.model.presets import PRESETS
from torchrelay.recipe.load import load_recipe, recipe_hash
from torchrelay.recipe.reference import render_reference

TEXT = """\
run: {name: mine}
model: {decoder: {preset: 1m, dropout: 0.1}}
data: {dataset: d}
train: {steps: 10, global_batch: 8}
"""


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    (tmp_path / "recipe.yaml").write_text(TEXT)
    return str(tmp_path / "recipe.yaml")


def test_a_good_recipe_is_summed_up_with_its_hash(recipe: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["recipe", "check", recipe, "--set", "train.steps=50", "--set", "run.seed=7"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"ok {recipe_hash(load_recipe(recipe, ['train.steps=50', 'run.seed=7']))}"
    assert [line.split()[0] for line in lines[1:]] == [
        "run",
        "model",
        "data",
        "train",
        "parallel",
        "checkpoint",
    ]
    assert "mine in relay-store, seed 7" in lines[1]
    assert "decoder preset 1m, dropout 0.1" in lines[2]
    assert "50 steps, 8 samples a step, fp32, adamw lr 0.0003" in lines[4]


@pytest.mark.parametrize(
    ("settings", "shown"),
    [
        (["model={huggingface: {path: folder}}"], "huggingface folder, causal-lm"),
        (["model={huggingface: {config: {model_type: gpt2}}}"], "huggingface configuration gpt2, causal-lm"),
        (["model={python: 'm:f'}"], "python m:f"),
        (["model={plugin: p}"], "plugin p"),
        (["data={source: 'm:f'}"], "source m:f"),
        (["train.steps=null", "train.epochs=2"], "2.0 epochs, 8 samples"),
    ],
)
def test_every_kind_is_summed_up(
    recipe: str, capsys: pytest.CaptureFixture[str], settings: list[str], shown: str
) -> None:
    assert run(["recipe", "check", recipe, *(word for s in settings for word in ("--set", s))]) == 0
    assert shown in capsys.readouterr().out


def test_a_bad_recipe_is_refused_for_good(recipe: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["recipe", "check", recipe, "--set", "train.stepz=5"]) == 78
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "train.stepz: unknown key; did you mean 'steps'?" in shown.err
    assert "hint: " in shown.err


def test_the_reference_ends_with_the_presets(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["recipe", "reference"]) == 0
    page = capsys.readouterr().out
    assert page == reference_page()
    assert page.startswith(render_reference())
    for name, preset in PRESETS.items():
        (row,) = [line for line in page.splitlines() if line.startswith(f"| `{name}` |")]
        assert f" {preset.width} " in row
