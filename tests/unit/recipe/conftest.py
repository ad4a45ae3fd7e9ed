from collections.abc import Callable
from pathlib import Path

import pytest

from torchrelay.recipe.load import load_recipe
from torchrelay.recipe.schema import Recipe

SMALLEST = """\
run: {name: a}
model: {decoder: {preset: 1m}}
data: {dataset: d}
train: {steps: 10, global_batch: 8}
"""


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], str]:
    def write(text: str) -> str:
        (tmp_path / "recipe.yaml").write_text(text, encoding="utf-8")
        return str(tmp_path / "recipe.yaml")

    return write


@pytest.fixture
def load(write: Callable[[str], str]) -> Callable[..., Recipe]:
    """The smallest recipe with settings laid over it."""
    return lambda *settings: load_recipe(write(SMALLEST), settings)
