import pytest

from torchrelay.core.errors import RecipeError
from torchrelay.model.fit import demand_fit
from torchrelay.recipe.problem import Problem


def test_no_problem_is_no_error() -> None:
    demand_fit(iter([]))


def test_every_problem_is_listed_with_path_and_hint() -> None:
    with pytest.raises(RecipeError) as caught:
        demand_fit([Problem("model.a", "is wrong", "do this"), Problem("model.b", "is missing")])
    assert caught.value.message == (
        "the model cannot be built, 2 problems:\n  model.a: is wrong (do this)\n  model.b: is missing"
    )
