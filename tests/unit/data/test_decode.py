import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from torchrelay.core.errors import DataError, RecipeError
from torchrelay.data.decode import make_collate, make_decoder, stack_samples
from torchrelay.data.image_decode import ImageDecoder
from torchrelay.data.manifest import Column, Content
from torchrelay.recipe.data_schema import DataSection

NUMBERS = (
    Column(name="n", dtype="int32", shape=()),
    Column(name="x", dtype="float32", shape=(2,)),
    Column(name="y", dtype="ndarray"),
)
FUNCTIONS = """
import numpy as np
def noise(sample, rng, scale=1.0): return {"x": sample["x"] + scale * rng.random(2)}
def alone(sample, scale=1.0): return {"x": scale * sample["x"]}
def told(sample, rng, training): return {"t": training}
def broken(sample, rng): raise KeyError("nothing")
def odd(sample, rng): return [1]
def same(sample): return sample
def give(sample, column, value): return {column: value}
def stop(sample): raise KeyboardInterrupt
def ragged(sample): return {"r": [[1], [1, 2]]}
import json
def deep(sample):
    return json.loads("{")
def words(sample, rng): return {"w": ["a"]}
def pad(samples): return {"n": np.array([len(samples)])}
def text(samples): return "text"
number = 5
"""


@pytest.fixture(autouse=True)
def functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "my_functions.py").write_text(FUNCTIONS)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("my_functions", None)


def decoder(
    name: str | None, *, columns: Any = NUMBERS, seed: int = 1, training: bool = True, **options: Any
) -> Any:
    section = DataSection(dataset="d", decode=name, decode_options=options)
    content = Content(kind="samples", format="mds", splits={}, columns=columns)
    return make_decoder(section, content, seed, training=training)


def test_numbers_and_arrays_need_no_decoder() -> None:
    x, y = np.ones(2, np.float32), np.arange(3, dtype=np.int8)
    found = decoder(None).decode({"n": 5, "x": x, "y": y}, 0, 0)
    assert found["n"].dtype == np.int32 and found["n"].shape == () and found["n"] == 5
    assert found["x"] is x and found["y"] is y


@pytest.mark.parametrize(("column", "hint"), [
    (Column(name="photo", dtype="jpeg"), "image"), (Column(name="image", dtype="bytes"), "image"),
    (Column(name="text", dtype="str"), "package.module:function"),
    (Column(name="t", dtype="json"), "package.module:function"),
])  # fmt: skip
def test_what_is_no_array_needs_a_decoder(column: Column, hint: str) -> None:
    with pytest.raises(
        DataError, match=f"the column '{column.name}' holds {column.dtype}, which is no array"
    ) as e:
        decoder(None, columns=(*NUMBERS, column))
    assert f"data.decode: {hint}" in e.value.hint


def test_image_is_built_in() -> None:
    columns = (Column(name="photo", dtype="jpeg"),)
    assert isinstance(decoder("image", columns=columns, size=8), ImageDecoder)
    with pytest.raises(RecipeError, match=r"there is no decoder 'imag'; did you mean 'image'\?"):
        decoder("imag", columns=columns)


def test_randomness_belongs_to_seed_epoch_and_sample() -> None:
    sample = {"x": np.zeros(2)}

    def draw(sample_id: int, epoch: int, seed: int = 1) -> tuple[float, ...]:
        return tuple(decoder("my_functions:noise", seed=seed).decode(sample, sample_id, epoch)["x"])

    assert draw(3, 0) == draw(3, 0)
    assert len({draw(3, 0), draw(4, 0), draw(3, 1), draw(3, 0, seed=2)}) == 4
    assert decoder("my_functions:alone", scale=2.0).decode({"x": np.ones(2)}, 0, 0)["x"].tolist() == [2, 2]
    assert decoder("my_functions:noise", scale=0.0).decode(sample, 0, 0)["x"].tolist() == [0, 0]


@pytest.mark.parametrize("training", [True, False])
def test_a_function_may_ask_whether_it_is_for_training(training: bool) -> None:
    assert decoder("my_functions:told", training=training).decode({}, 0, 0)["t"] == training


@pytest.mark.parametrize(("name", "told"), [
    ("broken", "KeyError: 'nothing' at {file}:6"), ("deep", "JSONDecodeError: .* at {file}:14"),
])  # fmt: skip
def test_an_error_of_the_function_tells_its_last_line_there(name: str, told: str, tmp_path: Path) -> None:
    file = tmp_path / "my_functions.py"
    with pytest.raises(
        DataError, match=f"^data.decode my_functions:{name} raised {told.format(file=file)}\n"
    ):
        decoder(f"my_functions:{name}").decode({"n": 1}, 17, 2)


def test_an_error_of_the_function_is_chained_and_a_request_to_stop_is_left_alone() -> None:
    with pytest.raises(DataError) as caught:
        decoder("my_functions:broken").decode({}, 17, 2)
    assert isinstance(caught.value.__cause__, KeyError)
    with pytest.raises(KeyboardInterrupt):
        decoder("my_functions:stop").decode({}, 17, 2)


MANY = (*NUMBERS, Column(name="b", dtype="bool", shape=()), Column(name="h", dtype="uint8", shape=()),
        Column(name="f", dtype="float32", shape=()), Column(name="j", dtype="json"))  # fmt: skip


def test_a_function_that_changes_nothing_keeps_the_types_of_the_columns() -> None:
    sample = {"n": 5, "x": np.ones(2, np.float32), "b": True, "h": 1, "f": 0.5, "j": 7}
    found = decoder("my_functions:same", columns=MANY).decode(sample, 0, 0)
    assert {name: array.dtype.name for name, array in found.items()} == {
        "n": "int32", "x": "float32", "b": "bool", "h": "uint8", "f": "float32", "j": "int64"
    }  # fmt: skip
    assert [found[name] for name in "nbhf"] == [5, True, 1, 0.5]
    assert type(sample["f"]) is float  # the caller's own stays


@pytest.mark.parametrize(("column", "value", "dtype"), [
    ("f", 2, "float32"), ("f", 0.5, "float32"), ("f", np.float64(2), "float32"), ("f", [1, 2], "float32"),
    ("n", 3, "int32"), ("n", [], "int32"), ("h", True, "uint8"), ("h", 300, "int64"), ("n", 2**40, "int64"),
    ("n", 0.5, "float64"), ("f", 1j, "complex128"), ("f", np.array(0.5), "float64"), ("other", 1, "int64"),
])  # fmt: skip
def test_what_is_given_for_a_column_is_of_its_type_unless_that_would_change_it(
    column: str, value: Any, dtype: str
) -> None:
    found = decoder("my_functions:give", columns=MANY, column=column, value=value).decode({"n": 1}, 0, 0)
    assert found[column].dtype == dtype
    assert found[column].tolist() == np.asarray(value).tolist()


@pytest.mark.parametrize(("name", "reason"), [
    ("odd", "data.decode my_functions:odd gave list, not a dict of arrays"),
    ("ragged", "gave 'r', which is no array: "),
    ("words", "gave 'w' of type list .* not numbers"),
])  # fmt: skip
def test_what_is_no_array_is_named(name: str, reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        decoder(f"my_functions:{name}").decode({}, 17, 0)


@pytest.mark.parametrize(("name", "options", "reason"), [
    ("my_functions:noise", {"size": 1}, "noise cannot be called with a sample, a numpy Generator"),
 ("my_functions:number", {}, "is int, not a function"),
    ("my_functions:nois", {}, "did you mean 'noise'"), ("no_such_module:f", {}, "cannot import"),
])  # fmt: skip
def test_a_function_that_does_not_fit_is_found_before_the_first_sample(
    name: str, options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(RecipeError, match=reason):
        decoder(name, **options)


def collate(name: str | None) -> Any:
    return make_collate(DataSection(dataset="d", collate=name))


def test_arrays_of_equal_shape_are_stacked() -> None:
    samples = [{"a": np.full(2, n, np.int16), "b": np.array(n)} for n in range(3)]
    found = collate(None)(samples)
    assert found["a"].tolist() == [[0, 0], [1, 1], [2, 2]] and found["a"].dtype == np.int16
    assert found["b"].tolist() == [0, 1, 2]
    found["a"][0, 0] = 9
    assert samples[0]["a"][0] == 0


@pytest.mark.parametrize(("second", "reason"), [
    ({"a": np.zeros(3)}, r"'a' of sample 1 of the micro-batch is float64 \(3,\), of sample 0 float64 \(2,\)"),
    ({"a": np.zeros(2, np.int8)}, r"is int8 \(2,\), of sample 0 float64 \(2,\)"),
    ({"b": np.zeros(2)}, "sample 1 of the micro-batch has no 'a'"),
    ({"a": np.zeros(2), "b": np.zeros(2)}, "samples 0 and 1 of the micro-batch differ in b"),
])  # fmt: skip
def test_arrays_that_cannot_be_stacked_are_named(second: Any, reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        stack_samples([{"a": np.zeros(2)}, second])


def test_a_function_can_put_samples_together() -> None:
    assert collate("my_functions:pad")([{}, {}])["n"].tolist() == [2]
    with pytest.raises(DataError, match="data.collate my_functions:text gave str, not a dict of arrays"):
        collate("my_functions:text")([{}])
    with pytest.raises(RecipeError, match="data.collate: my_functions:noise cannot be called with a list"):
        collate("my_functions:noise")
