from pathlib import Path

import pytest

from torchrelay.cli.app import run
from torchrelay.recipe.template import StartKind


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("kind", list(StartKind))
def test_what_is_written_passes_the_check(kind: StartKind, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["init", "mine.yaml", "--kind", kind]) == 0
    assert "torchrelay train mine.yaml" in capsys.readouterr().out
    assert run(["recipe", "check", "mine.yaml"]) == 0


def test_the_default_is_a_text_recipe_here(in_folder: Path) -> None:
    assert run(["init"]) == 0
    assert [path.name for path in in_folder.iterdir()] == ["recipe.yaml"]


def test_python_writes_the_module_beside_the_recipe(
    in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["init", "new folder/mine.yaml", "--kind", "python"]) == 0
    assert sorted(path.name for path in (in_folder / "new folder").iterdir()) == ["mine.yaml", "my_model.py"]
    assert "cd 'new folder'\n  torchrelay recipe check mine.yaml" in capsys.readouterr().out


@pytest.mark.parametrize("taken", ["mine.yaml", "my_model.py"])
def test_nothing_is_overwritten_and_nothing_half_written(
    in_folder: Path, capsys: pytest.CaptureFixture[str], taken: str
) -> None:
    (in_folder / taken).write_text("precious")
    assert run(["init", "mine.yaml", "--kind", "python"]) == 78
    assert [path.name for path in in_folder.iterdir()] == [taken]
    assert (in_folder / taken).read_text() == "precious"
    assert "--force" in capsys.readouterr().err
    assert run(["init", "mine.yaml", "--kind", "python", "--force"]) == 0
    assert (in_folder / taken).read_text() != "precious"


def test_a_folder_that_cannot_be_made_is_told(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (in_folder / "file").write_text("")
    assert run(["init", "file/mine.yaml"]) == 78
    assert "cannot write file/mine.yaml" in capsys.readouterr().err
