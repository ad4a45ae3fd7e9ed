"""Build the optimizer the recipe names. Matrices decay, vectors (norms, biases) do not."""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import nn

from torchrelay.core.errors import RecipeError
from torchrelay.core.plugins import load_object
from torchrelay.recipe.schema import OptimizerSection
from torchrelay.train.adamw import FusedAdamW
from torchrelay.train.lion import Lion

RECIPE_KEYS = ("lr", "weight_decay", "betas", "eps", "momentum", "initial_lr")
"""Values of the parameter groups that the recipe decides, not the checkpoint."""


class Optimizer(Protocol):
    """What the loop and checkpoints need of an optimizer; every torch optimizer has it."""

    param_groups: list[dict[str, Any]]
    state: Any
    """Dictionaries of tensors, by parameter."""

    def step(self) -> Any:
        """Update every parameter from its gradient."""

    def zero_grad(self) -> None:
        """Drop all gradients."""


def build_optimizer(section: OptimizerSection, module: nn.Module) -> Optimizer:
    """An optimizer over the module's trainable parameters, with its decay groups."""
    groups = _decay_groups(module, section.weight_decay)
    name = section.name
    if ":" in name:
        return _own(section, groups)
    try:
        return _BUILDERS[name](section, groups)
    except (TypeError, ValueError, RuntimeError) as error:
        raise RecipeError(f"train.optimizer: {name} refuses its values: {error}") from error


def set_lr(optimizer: Optimizer, lr: float) -> None:
    """The learning rate of the next update, in every group."""
    for group in optimizer.param_groups:
        group["lr"] = lr


def _decay_groups(module: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    parameters = [p for p in module.parameters() if p.requires_grad]
    matrices = [p for p in parameters if p.ndim >= 2]
    vectors = [p for p in parameters if p.ndim < 2]
    if weight_decay == 0.0:
        return [{"params": parameters, "weight_decay": 0.0}]
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def _adamw(section: OptimizerSection, groups: list[dict[str, Any]]) -> Optimizer:
    if section.options:  # amsgrad and the like: torch's own
        options = {"fused": True, **section.options}
        return torch.optim.AdamW(groups, lr=section.lr, betas=section.betas, eps=section.eps, **options)
    return FusedAdamW(groups, lr=section.lr, betas=section.betas, eps=section.eps)


def _sgd(section: OptimizerSection, groups: list[dict[str, Any]]) -> Optimizer:
    return torch.optim.SGD(groups, lr=section.lr, momentum=section.momentum, **section.options)


def _lion(section: OptimizerSection, groups: list[dict[str, Any]]) -> Optimizer:
    return Lion(groups, lr=section.lr, betas=section.betas, **section.options)


_BUILDERS: dict[str, Callable[[OptimizerSection, list[dict[str, Any]]], Optimizer]] = {
    "adamw": _adamw,
    "sgd": _sgd,
    "lion": _lion,
}


def _own(section: OptimizerSection, groups: list[dict[str, Any]]) -> Optimizer:
    factory = load_object(section.name, "train.optimizer.name")
    try:
        optimizer = factory(groups, lr=section.lr, **section.options)
    except (TypeError, ValueError, RuntimeError) as error:
        raise RecipeError(
            f"train.optimizer: {section.name} refuses (params, lr, **options): {error}"
        ) from error
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise RecipeError(
            f"train.optimizer.name: {section.name} made a {type(optimizer).__name__}, no optimizer"
        )
    return optimizer
