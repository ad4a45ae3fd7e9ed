"""The task of a user's own module: `package.module:function` returns it, its forward returns losses.

The weights are real, not on meta, and drawn under the run's seed: equal on all ranks.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from torchrelay.core.errors import ModelError
from torchrelay.core.plugins import load_object, nearest
from torchrelay.data.batch import DataFacts
from torchrelay.model.fit import demand_fit
from torchrelay.model.seed import seeded
from torchrelay.model.task import ExportFormat, Task
from torchrelay.recipe.model_schema import ModelSection
from torchrelay.recipe.problem import Problem

_CONTRACT = (
    "forward(tensors) must return the loss of every sample, a float tensor of shape [samples], "
    "or their mean, a 0-dim float tensor"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonTask:
    """A Task; see there for the contract of every method."""

    reference: str
    """`package.module:function`, for messages."""
    function: Callable[..., Any]
    options: dict[str, Any]

    def build(self, seed: int) -> nn.Module:
        """What the function returns; ModelError unless it is a module with real parameters."""
        with seeded(seed):
            module = self.function(**self.options)
        if not isinstance(module, nn.Module):
            raise ModelError(
                f"{self.reference} returned {_described(module)}, expected a torch.nn.Module",
                hint="return the module itself, not its class or its parameters",
            )
        on_meta = [name for name, tensor in module.named_parameters() if tensor.is_meta]
        if on_meta:
            raise ModelError(
                f"{self.reference} left {len(on_meta)} parameters without values, {on_meta[0]} first",
                hint="build the module on the CPU, not on the meta device",
            )
        return module

    def initial(self, name: str, like: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Never needed for parameters; a buffer on meta has no value that could be known."""
        raise ModelError(
            f"{self.reference} left the buffer {name} without values",
            hint="build the module on the CPU, not on the meta device",
        )

    def loss(self, module: Callable[..., Any], tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Sum over the samples of what forward returns; ModelError when that is not a loss."""
        losses = module(tensors)
        samples = len(next(iter(tensors.values())))
        fault = _find_fault(losses, samples)
        if fault:
            raise ModelError(f"the module of {self.reference} returned {fault}", hint=_CONTRACT)
        losses = losses.float()  # summed in fp32 whatever the model computes in
        total: torch.Tensor = losses.sum() if losses.dim() else losses * samples
        return total

    def blocks(self, module: nn.Module) -> Sequence[nn.Module]:
        """Members with parameters of the first ModuleList or Sequential that has any."""
        for part in module.modules():
            if isinstance(part, nn.ModuleList | nn.Sequential):
                members = [member for member in part if any(True for _ in member.parameters())]
                if members:
                    return members
        return []

    def export(self) -> ExportFormat:
        """The weights alone, under their own names."""
        return ExportFormat(config=None, convert=lambda name, tensor: [(name, tensor)], extra=list)


def build_python_task(section: ModelSection, facts: DataFacts) -> Task:
    """The task of `model.python`; `facts` is not needed.

    Raises RecipeError when the function cannot be loaded or does not take the options.
    """
    if section.python is None:
        raise ModelError("the recipe has no model.python")
    function = load_object(section.python, "model.python")
    if not callable(function):
        raise ModelError(f"model.python: {section.python} is {_described(function)}, expected a function")
    demand_fit(_option_problems(section.python, function, section.options))
    return PythonTask(reference=section.python, function=function, options=section.options)


def _option_problems(
    reference: str, function: Callable[..., Any], options: dict[str, Any]
) -> Iterator[Problem]:
    try:
        parameters = inspect.signature(function).parameters
    except ValueError:  # some functions written in C tell nothing
        return
    by_name = [name for name, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    for name in options:
        if name not in by_name and not takes_any:
            close = nearest(name, by_name)
            yield Problem(f"model.options.{name}", f"{reference} has no such argument{close}")
    for name in by_name:
        if name not in options and parameters[name].default is inspect.Parameter.empty:
            yield Problem(f"model.options.{name}", f"is missing, {reference} needs it")


def _find_fault(losses: object, samples: int) -> str | None:
    if not isinstance(losses, torch.Tensor) or not losses.is_floating_point():
        return _described(losses)
    if losses.dim() and losses.shape != (samples,):
        return f"{_described(losses)} for {samples} samples"
    if torch.is_grad_enabled() and not losses.requires_grad:
        return f"{_described(losses)} that no parameter was used for, so it has no gradient"
    return None


def _described(value: object) -> str:
    if value is None:
        return "None"
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {list(value.shape)} and type {str(value.dtype).removeprefix('torch.')}"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return f"an object of type {type(value).__name__}"
