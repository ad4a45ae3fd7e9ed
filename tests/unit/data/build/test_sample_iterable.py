import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.unit.data.build.sample_support import bad, build, good
from torchrelay.core.errors import DataError, RecipeError
from torchrelay.data.build import sample_iterable
from torchrelay.data.build.dataset_build import SampleRequest, build_dataset
from torchrelay.data.build.sample_iterable import PythonSamples
from torchrelay.store.files import FileStore

SOURCE = """
import numpy as np
from PIL import Image

def stream(count=3):
    for n in range(count):
        yield {"x": np.full(2, n, np.float32), "n": n, "name": f"s{n}", "tags": ["a", n], "flag": n > 0}

class Rows:
    def __len__(self): return 10
    def __getitem__(self, n): return {"n": n}

def rows(): return Rows()
def pictures(): return [{"i": Image.fromarray(np.full((4, 5), n, np.uint8))} for n in range(2)]
def odd(): return [{"a": 1}, 5, {"a": 2}]
def nothing(): return 5
def objects(): return [{"a": object()}]
number = 1

def raising():
    yield {"n": 1}
    raise ValueError("bad row")

class Lazy(Rows):
    def __getitem__(self, n):
        if n == 5: raise IndexError(n)
        return {"n": n}

def lazy(): return Lazy()
def mixed(): return [{"a": 1}, "words"]
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    (tmp_path / "my_samples.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    yield __import__("my_samples")
    del sys.modules["my_samples"]


def source(name: str, **options: Any) -> PythonSamples:
    return PythonSamples(reference=f"my_samples:{name}", options=options)


def test_a_generator_of_dicts_is_one_unit(module: ModuleType) -> None:
    built = build(source("stream", count=4))
    assert built.columns == {
        "flag": ("uint8", ()),
        "n": ("int64", ()),
        "name": ("str", None),
        "tags": ("json", None),
        "x": ("float32", (2,)),
    }
    assert built.samples[3]["x"].tolist() == [3, 3] and built.samples[3]["tags"] == ["a", 3]
    assert len(source("stream").units()) == 1


def test_a_sequence_is_divided(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_iterable, "_ROWS", 4)
    assert [unit.size for unit in source("rows").units()] == [4, 4, 2]
    found = good(source("rows"))
    assert [sample.values["n"] for sample in found] == list(range(10))
    assert found[9].where == "my_samples:rows: sample 9"


def test_pillow_images_are_stored_as_png(module: ModuleType) -> None:
    assert build(source("pictures")).columns == {"i": ("png", None)}


def test_what_the_function_raises_is_told_by_processes_too(module: ModuleType, tmp_path: Path) -> None:
    for name, said in (("raising", "sample 1: ValueError: bad row"), ("lazy", "sample 5: IndexError: 5")):
        for processes in (1, 2):
            request = SampleRequest(sources=[source(name)], processes=processes, work=tmp_path / "work")
            with pytest.raises(DataError, match=f"my_samples:{name}: {said}"):
                build_dataset(FileStore(tmp_path / "s"), "d", request, progress=lambda _: None)


def test_what_is_no_dict_is_named(module: ModuleType) -> None:
    (found,) = bad(source("odd"))
    assert (found.where, found.why) == ("my_samples:odd: sample 1", "is int, not a dict")
    assert bad(source("mixed"))[0].why == "is the text 'words', not a dict"


@pytest.mark.parametrize(("name", "reason"), [
    ("nothing", "gave int, not an iterable of dicts"), ("number", "is int, not a function"),
])  # fmt: skip
def test_a_function_that_does_not_fit_is_named(module: ModuleType, name: str, reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        source(name).units()
    with pytest.raises(RecipeError, match="--python: my_samples has no 'strea'"):
        source("strea").units()


def test_a_value_that_no_dataset_holds_is_named(module: ModuleType) -> None:
    with pytest.raises(DataError, match="sample 0: the column 'a' holds object, which is not stored"):
        build(source("objects"))


def test_another_source_text_or_option_is_another_unit(module: ModuleType, tmp_path: Path) -> None:
    before = source("stream").units()[0].id
    assert source("stream").units()[0].id == before
    assert source("stream", count=5).units()[0].id != before
    assert np.size(before) == 1
