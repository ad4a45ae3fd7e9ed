import importlib
import sys
from pathlib import Path

import pytest
import yaml

from torchrelay.recipe.load import load_recipe
from torchrelay.recipe.template import TEMPLATES, StartKind, fill


@pytest.mark.parametrize("kind", list(StartKind))
def test_every_template_is_a_good_recipe_as_it_is(kind: StartKind, tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(fill(TEMPLATES[kind], path.name).recipe)
    recipe = load_recipe(str(path))
    given = {name for name in ("decoder", "huggingface", "python") if getattr(recipe.model, name)}
    assert given == {{"text": "decoder"}.get(kind.value, kind.value)}
    assert "{" not in path.read_text()
    assert recipe.run.name == TEMPLATES[kind].run


@pytest.mark.parametrize("kind", list(StartKind))
def test_the_keys_that_are_commented_out_are_keys_too(kind: StartKind, tmp_path: Path) -> None:
    lines = []
    for line in fill(TEMPLATES[kind], "recipe.yaml").recipe.splitlines():
        stripped = line.replace("# ", "", 1)
        is_key = stripped.split(":")[0].strip().replace("_", "").isalpha() and ": " in stripped + " "
        lines.append(stripped if line.lstrip().startswith("# ") and is_key else line)
    text = "\n".join(
        line for line in lines if not line.startswith(("Check this", "Any key", "Every key", "A torch"))
    )
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    tree = yaml.safe_load(text)
    assert tree != yaml.safe_load(fill(TEMPLATES[kind], "recipe.yaml").recipe), "no commented key was found"
    load_recipe(str(path))


@pytest.mark.parametrize("kind", list(StartKind))
def test_what_to_type_next_ends_with_training_this_recipe(kind: StartKind) -> None:
    assert fill(TEMPLATES[kind], "my file.yaml").commands[-1] == "torchrelay train 'my file.yaml'"


def test_every_kind_has_a_run_of_its_own() -> None:
    assert len({template.run for template in TEMPLATES.values()}) == len(StartKind)


def test_the_python_module_keeps_the_contract_of_model_and_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    (tmp_path / "my_model.py").write_text(TEMPLATES[StartKind.PYTHON].modules["my_model.py"])
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("my_model")
    try:
        source = module.open_points("train", count=50)
        samples = [source.read(index) for index in range(len(source))]
        batch = {
            key: torch.stack([torch.from_numpy(sample[key]) for sample in samples]) for key in samples[0]
        }
        losses = module.build_model(width=8)(batch)
        assert losses.shape == (50,)
        assert losses.requires_grad
        assert isinstance(source.version, str)
        assert (source.read(3)["point"] == source.read(3)["point"]).all()
        assert (module.open_points("validation").read(3)["point"] != source.read(3)["point"]).any()
    finally:
        del sys.modules["my_model"]
