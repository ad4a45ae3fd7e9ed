import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from torchrelay.core import plugins
from torchrelay.core.errors import RecipeError
from torchrelay.core.plugins import load_object, load_plugin, nearest, plugin_names


@pytest.fixture
def folder_on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("relay_example")]:
        del sys.modules[name]


@pytest.fixture
def offered(monkeypatch: pytest.MonkeyPatch):
    def offer(**values: str) -> None:
        def entry_points(*, group: str, name: str | None = None) -> list[EntryPoint]:
            points = [EntryPoint(key, value, group) for key, value in values.items()]
            return [point for point in points if name in (None, point.name)]

        monkeypatch.setattr(plugins, "entry_points", entry_points)

    return offer


def test_the_built_ins_come_through_the_same_door_as_everybody() -> None:
    assert {"decoder", "huggingface", "python"} <= set(plugin_names("task"))
    assert {"ddp", "fsdp"} <= set(plugin_names("engine"))


def test_a_plugin_is_loaded_by_name(offered) -> None:
    offered(right="json:dumps")
    assert load_plugin("task", "right")([1]) == "[1]"


def test_an_unknown_plugin_is_refused_with_the_nearest_name(offered) -> None:
    offered(decoder="json:dumps", python="json:loads")
    with pytest.raises(RecipeError, match="there is no task named 'decodr'") as caught:
        load_plugin("task", "decodr")
    assert caught.value.hint == "installed: decoder, python; did you mean 'decoder'?"


@pytest.mark.parametrize("value", ["no_such_module_here:f", "json:no_such_function"])
def test_a_plugin_that_cannot_be_imported_says_why(offered, value: str) -> None:
    offered(broken=value)
    with pytest.raises(RecipeError, match=f"the task 'broken' \\({value}\\) cannot be loaded: .*no_such"):
        load_plugin("task", "broken")


def test_an_object_is_found_by_module_and_name(folder_on_path: Path) -> None:
    (folder_on_path / "relay_example_good.py").write_text("def build(): return 5\n")
    assert load_object("relay_example_good:build", "model.python")() == 5


@pytest.mark.parametrize("reference", ["json", ":f", "json:", "", ".json:dumps"])
def test_a_reference_names_a_module_and_an_object(reference: str) -> None:
    with pytest.raises(RecipeError, match=r"model\.python: .* is not of the form package\.module:name"):
        load_object(reference, "model.python")


def test_a_misspelt_object_is_refused_with_the_nearest_name(folder_on_path: Path) -> None:
    (folder_on_path / "relay_example_near.py").write_text("def build_model(): pass\n")
    with pytest.raises(
        RecipeError, match=r"data\.source: .* has no 'build_modle'; did you mean 'build_model'\?"
    ):
        load_object("relay_example_near:build_modle", "data.source")


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("syntax", "def (:\n", "invalid syntax"),
        ("missing", "import no_such_module_here\n", "no_such_module_here"),
        ("wrong", "from json import no_such_name\n", "no_such_name"),
    ],
)
def test_a_module_that_cannot_be_imported_says_why(
    folder_on_path: Path, name: str, content: str, reason: str
) -> None:
    (folder_on_path / f"relay_example_{name}.py").write_text(content)
    with pytest.raises(RecipeError, match=reason) as caught:
        load_object(f"relay_example_{name}:build", "model.python")
    assert caught.value.message.startswith(f"model.python: cannot import 'relay_example_{name}'")


def test_nothing_is_suggested_when_nothing_is_near() -> None:
    assert nearest("zzz", ["steps", "epochs"]) == ""
