import pytest
import torch
from torch import nn

from torchrelay.core.errors import RecipeError
from torchrelay.recipe.schema import OptimizerSection
from torchrelay.train.adamw import FusedAdamW
from torchrelay.train.lion import Lion
from torchrelay.train.optimizer import build_optimizer, set_lr


def module() -> nn.Module:
    made = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3), nn.Linear(3, 1))
    made[2].requires_grad_(False)
    return made


def build(**fields: object) -> torch.optim.Optimizer:
    return build_optimizer(OptimizerSection.model_validate(fields), module())  # type: ignore[return-value]


def not_an_optimizer(parameters: object, lr: float) -> dict[str, float]:
    return {"lr": lr}


def picky(parameters: object, lr: float) -> None:
    raise ValueError("too steep")


def test_matrices_decay_and_vectors_do_not_and_frozen_ones_are_left_out() -> None:
    matrices, vectors = build(weight_decay=0.2).param_groups
    assert [tuple(p.shape) for p in matrices["params"]] == [(3, 3)]
    assert [tuple(p.shape) for p in vectors["params"]] == [(3,), (3,), (3,)]
    assert (matrices["weight_decay"], vectors["weight_decay"]) == (0.2, 0.0)


def test_without_decay_one_group_is_enough() -> None:
    (group,) = build(weight_decay=0.0).param_groups
    assert len(group["params"]) == 4


@pytest.mark.parametrize(
    ("fields", "kind", "expected"),
    [
        ({"name": "adamw", "betas": [0.1, 0.2], "eps": 1e-5}, FusedAdamW, {"betas": (0.1, 0.2), "eps": 1e-5}),
        (
            {"name": "adamw", "options": {"amsgrad": True}},
            torch.optim.AdamW,
            {"amsgrad": True, "fused": True},
        ),
        (
            {"name": "sgd", "momentum": 0.5, "options": {"nesterov": True}},
            torch.optim.SGD,
            {"nesterov": True},
        ),
        ({"name": "lion", "betas": [0.8, 0.9]}, Lion, {"betas": (0.8, 0.9)}),
        (
            {"name": "torch.optim:Adagrad", "options": {"lr_decay": 0.1}},
            torch.optim.Adagrad,
            {"lr_decay": 0.1},
        ),
    ],
)
def test_the_recipe_names_the_optimizer_and_its_values(
    fields: dict[str, object], kind: type, expected: dict[str, object]
) -> None:
    made = build(lr=0.25, **fields)
    assert type(made) is kind
    for group in made.param_groups:
        assert {key: group[key] for key in expected} == expected
        assert group["lr"] == 0.25


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": "sgd", "options": {"speed": 9}}, "train.optimizer: sgd refuses its values: .*speed"),
        (
            {"name": "adamw", "options": {"foreach": True}},
            "train.optimizer: adamw refuses its values: .*fused",
        ),
        ({"name": "torch.optim:Adagrad", "options": {"x": 1}}, "torch.optim:Adagrad refuses"),
        ({"name": "torch.optim:Nope"}, "torch.optim has no 'Nope'"),
        ({"name": f"{__name__}:not_an_optimizer"}, "made a dict, no optimizer"),
        ({"name": f"{__name__}:picky"}, "refuses .*: too steep"),
    ],
)
def test_what_cannot_be_built_is_an_error_of_the_recipe(fields: dict[str, object], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        build(**fields)


def test_the_rate_is_set_in_every_group() -> None:
    made = build(weight_decay=0.2)
    set_lr(made, 0.125)
    assert [group["lr"] for group in made.param_groups] == [0.125, 0.125]
