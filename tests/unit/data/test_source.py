import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from torchrelay.core.errors import DataError, RecipeError
from torchrelay.data.order.order import Located
from torchrelay.data.source import Arrays, SourceReading, load_source, open_source_reading
from torchrelay.recipe.data_schema import DataSection


class Squares:
    """Sample i is i and its square."""

    version = "squares-1"

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size

    def read(self, index: int) -> dict[str, Any]:
        return {"x": np.full((2, 3), index, np.float32), "y": np.int64(index * index)}


@pytest.fixture
def offer(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], DataSection]:
    """Make an object the target of `data.source`."""

    def make(target: Any, **options: Any) -> DataSection:
        module = ModuleType("users_data")
        module.open_data = target
        monkeypatch.setitem(sys.modules, "users_data", module)
        return DataSection(source="users_data:open_data", options=options)

    return make


def located(*ids: int) -> Located:
    sample_ids = np.array(ids, np.int64)
    return Located(sample_ids, np.minimum(sample_ids, 0), sample_ids)


def test_the_function_gets_the_split_and_the_options(offer: Any) -> None:
    asked: list[Any] = []

    def open_data(split: str, size: int, scale: float = 1.0) -> Squares:
        asked.append((split, size, scale))
        return Squares(size)

    assert len(load_source(offer(open_data, size=9), "validation")) == 9
    assert asked == [("validation", 9, 1.0)]


def read(source: Any, *ids: int, epochs: Any = None, seed: int = 1) -> Any:
    where = located(*ids)
    given = np.zeros_like(where.indexes) if epochs is None else np.array(epochs)
    return open_source_reading(source, seed).read(where, given)


def test_samples_are_stacked_in_the_order_asked_for() -> None:
    rows = read(Squares(10), 3, 0, 9)
    assert rows.arrays["x"].shape == (3, 2, 3)
    assert rows.arrays["x"][:, 0, 0].tolist() == [3, 0, 9]
    assert rows.arrays["y"].tolist() == [9, 0, 81]
    assert (rows.arrays["x"].dtype, rows.arrays["y"].dtype) == (np.float32, np.int64)
    assert (rows.num_targets, rows.num_tokens) == (3, 3)


def test_wrong_options_are_named(offer: Any) -> None:
    with pytest.raises(DataError, match="cannot be called with split and data.options: .*'sise'"):
        load_source(offer(lambda split, size=3: Squares(size), sise=4), "train")


def test_an_error_inside_the_function_is_not_hidden(offer: Any) -> None:
    def broken(split: str) -> Squares:
        raise TypeError("mine")

    with pytest.raises(TypeError, match="mine"):
        load_source(offer(broken), "train")


def test_what_is_no_source_is_refused_with_what_it_lacks(offer: Any) -> None:
    with pytest.raises(DataError, match="returned list without read, version"):
        load_source(offer(lambda split: [1, 2]), "train")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 3}, "the version must be a text, got 3"),
        ({"_size": 0}, "the train split .* has no sample"),
    ],
)
def test_a_source_without_version_or_samples_is_refused(offer: Any, change: Any, message: str) -> None:
    source = Squares(4)
    vars(source).update(change)
    with pytest.raises(DataError, match=message):
        load_source(offer(lambda split: source), "train")


def test_a_missing_module_is_a_recipe_error() -> None:
    with pytest.raises(RecipeError, match="data.source: cannot import 'nowhere'"):
        load_source(DataSection(source="nowhere:f"), "train")


class Uneven(Squares):
    """Samples that do not fit each other."""

    def __init__(self, second: dict[str, Any]) -> None:
        super().__init__(2)
        self._second = second

    def read(self, index: int) -> dict[str, Any]:
        return {"x": np.zeros(3, np.float32)} if index == 0 else self._second


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ({"x": np.zeros(4, np.float32)}, r"'x' is float32 \(4,\) in sample 1, float32 \(3,\) in sample 0"),
        ({"x": np.zeros(3)}, "'x' is float64"),
        ({"y": np.zeros(3)}, "sample 1 has y; sample 0 has x"),
    ],
)
def test_samples_that_do_not_fit_each_other_are_named(second: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        read(Uneven(second), 0, 1)


def test_text_is_no_array() -> None:
    with pytest.raises(DataError, match="'x' of sample 1 is of type .*, not a number"):
        read(Uneven({"x": "word"}), 1)


class Random(Squares):
    """Sample i is drawn."""

    def read(self, index: int, *, rng: np.random.Generator) -> dict[str, Any]:
        return {"x": rng.random(3)}


def test_what_a_source_draws_belongs_to_seed_epoch_and_sample() -> None:
    def drawn(*ids: int, epochs: Any, seed: int = 1) -> Any:
        return read(Random(9), *ids, epochs=epochs, seed=seed).arrays["x"].tolist()

    first, second, other = drawn(3, 4, 3, epochs=[0, 0, 1])
    assert len({tuple(first), tuple(second), tuple(other)}) == 3
    assert drawn(4, epochs=[0]) == [second]
    assert drawn(3, epochs=[1]) == [other]
    assert drawn(3, epochs=[0], seed=2) != [first]


@pytest.mark.parametrize("source", [Squares(10), Arrays({"y": np.arange(10) ** 2})])
def test_a_place_without_a_sample_is_left_out(source: Any) -> None:
    rows = read(source, 3, -1, 5, -1)
    assert rows.arrays["y"].tolist() == [9, 25]
    assert (rows.num_targets, rows.num_tokens) == (2, 2)
    nothing = read(source, -1, -1)
    assert nothing.arrays["y"].tolist() == [0]
    assert (nothing.num_targets, nothing.num_tokens) == (0, 0)


def test_all_samples_are_alike_in_length() -> None:
    assert SourceReading(Squares(3), 1).lengths(located(1)) is None
    assert open_source_reading(Arrays({"x": np.zeros(3)}), 1).lengths(located(1)) is None
