import pytest

from torchrelay.core.errors import RecipeError
from torchrelay.data.order.course import Change
from torchrelay.data.order.gaps import Gap
from torchrelay.data.order.history import Source
from torchrelay.data.recipe_plan import make_plan, pin_versions, references
from torchrelay.recipe.data_schema import DataSection

SOURCES = [Source("a", "a1", 100), Source("b", "b1", 50)]
MIXTURE = DataSection.model_validate(
    {
        "mixture": [{"dataset": "a", "weight": 3.0}, {"dataset": "b@2", "weight": 1.0}],
        "curriculum": [
            {"at": 50, "weights": {"b@2": 1.0, "a": 0.0}},
            {"at": "100k tokens", "weights": {"a": 1.0, "b@2": 1.0}},
        ],
    }
)


def test_a_mixture_becomes_weights_by_step_in_the_order_of_its_parts() -> None:
    plan = make_plan(MIXTURE, SOURCES, seed=7, batch=10, tokens_per_sample=64)
    assert plan.changes == (Change(0, (3.0, 1.0)), Change(50, (0.0, 1.0)), Change(157, (1.0, 1.0)))
    assert (plan.seed, plan.batch, plan.sources, plan.may_add) == (7, 10, tuple(SOURCES), True)


def test_tokens_that_cannot_be_counted_ahead_are_refused() -> None:
    with pytest.raises(RecipeError, match=r"data\.curriculum: 100k tokens cannot be counted ahead"):
        make_plan(MIXTURE, SOURCES, seed=7, batch=10, tokens_per_sample=None)


def test_one_dataset_has_one_weight() -> None:
    section = DataSection(dataset="a", skip=("3..7", "9..12"), epoch_end="stop", migrate_from="abc")
    plan = make_plan(section, SOURCES[:1], seed=7, batch=10, tokens_per_sample=None)
    assert plan.changes == (Change(0, (1.0,)),)
    assert plan.skip == (Gap(3, 7), Gap(9, 12))
    assert (plan.fills_epochs, plan.migrate_from, plan.may_add) == (True, "abc", False)


def test_datasets_are_listed_and_pinned_by_name() -> None:
    assert references(MIXTURE) == ["a", "b@2"]
    assert references(DataSection(dataset="c")) == ["c"]
    assert references(DataSection(source="m:f")) == []
    pinned = pin_versions(MIXTURE, {"a": "a1", "b": "b1"})
    assert references(pinned) == ["a@a1", "b@b1"]
    assert pinned.curriculum[0].weights == {"a@a1": 0.0, "b@b1": 1.0}
    assert pin_versions(DataSection(dataset="c@1"), {"c": "c1"}).dataset == "c@c1"
    assert pin_versions(DataSection(source="m:f"), {}).source == "m:f"
