"""The tensors that are saved, under names that do not depend on how the model is spread.

`model/<parameter or buffer>` and `optimizer/<parameter>/<state>`; values are plain tensors
(every rank has the whole) or DTensors (every rank has its shard). All views, no copies.
"""

from collections.abc import Iterable
from typing import Any, Protocol

import torch
from torch import nn
from torch.distributed.tensor import DTensor, zeros

from torchrelay.core.errors import CheckpointError

MODEL = "model/"
OPTIMIZER = "optimizer/"
_PLAIN = (bool, int, float, str, type(None))


class Optimizer(Protocol):
    """What is saved of an optimizer; every torch optimizer has it."""

    param_groups: list[dict[str, Any]]
    state: Any
    """Dictionaries of tensors, by parameter."""


def model_state(module: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and persistent buffers; a tied parameter appears once."""
    persistent = module.state_dict(keep_vars=True)
    tensors = {name: p.detach() for name, p in module.named_parameters()}
    tensors |= {name: b.detach() for name, b in module.named_buffers() if name in persistent}
    return {MODEL + name: tensor for name, tensor in tensors.items()}


def optimizer_state(module: nn.Module, optimizer: Optimizer) -> dict[str, torch.Tensor]:
    """The optimizer's tensors, named by the parameter they belong to; empty before the first step."""
    return {
        f"{OPTIMIZER}{name}/{key}": value
        for name, parameter in module.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
        if isinstance(value, torch.Tensor)
    }


def optimizer_values(module: nn.Module, optimizer: Optimizer) -> dict[str, dict[str, Any]]:
    """The optimizer's plain values by parameter (a step counter kept as a number).

    CheckpointError for state that is neither tensor nor plain: it could not be given back.
    """
    values: dict[str, dict[str, Any]] = {}
    for name, parameter in module.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, _PLAIN):
                values.setdefault(name, {})[key] = value
            elif not isinstance(value, torch.Tensor):
                raise CheckpointError(
                    f"the optimizer keeps {key!r} of {name} as {type(value).__name__}, which cannot be saved",
                    hint="keep tensors, numbers or text in its state",
                )
    return values


def restore_values(module: nn.Module, optimizer: Optimizer, saved: dict[str, dict[str, Any]]) -> None:
    """Put the optimizer's plain values back."""
    for name, parameter in module.named_parameters():
        if name in saved:
            optimizer.state.setdefault(parameter, {}).update(saved[name])


def group_values(optimizer: Optimizer) -> list[dict[str, Any]]:
    """The plain values of the optimizer's parameter groups (what a schedule-free optimizer keeps there)."""
    return [{k: v for k, v in group.items() if isinstance(v, _PLAIN)} for group in optimizer.param_groups]


def restore_groups(optimizer: Optimizer, saved: list[dict[str, Any]], *, keep: Iterable[str]) -> None:
    """Put the saved plain values back, except `keep` (what the recipe decides anew)."""
    for group, values in zip(optimizer.param_groups, saved, strict=True):
        group.update({k: v for k, v in values.items() if k in group and k not in set(keep)})


def allocate_optimizer_state(
    module: nn.Module,
    optimizer: Optimizer,
    shapes: dict[str, tuple[tuple[int, ...], torch.dtype]],
) -> dict[str, torch.Tensor]:
    """Make room in a fresh optimizer for the saved tensors `shapes` names; returns them to be filled.

    A state shaped like its parameter is spread like it; any other is whole on every rank.
    """
    targets: dict[str, torch.Tensor] = {}
    counters = _counter_devices(optimizer)
    for name, parameter in module.named_parameters():
        prefix = f"{OPTIMIZER}{name}/"
        for full_name, (shape, dtype) in shapes.items():
            if full_name.startswith(prefix) and "/" not in full_name[len(prefix) :]:
                is_counter = not shape and parameter.ndim > 0
                device = counters.get(parameter, parameter.device) if is_counter else parameter.device
                tensor = _like(parameter, shape, dtype, device)
                optimizer.state.setdefault(parameter, {})[full_name[len(prefix) :]] = tensor
                targets[full_name] = tensor
    return targets


def _counter_devices(optimizer: Optimizer) -> dict[torch.Tensor, torch.device]:
    """Where an optimizer keeps its step counters: beside the parameter for kernels that read them there."""
    return {
        parameter: parameter.device if group.get("fused") or group.get("capturable") else torch.device("cpu")
        for group in optimizer.param_groups
        for parameter in group["params"]
    }


def _like(
    parameter: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    if tuple(parameter.shape) != shape:
        return torch.zeros(shape, dtype=dtype, device=device)
    if isinstance(parameter, DTensor):
        return zeros(shape, dtype=dtype, device_mesh=parameter.device_mesh, placements=parameter.placements)
    return torch.zeros_like(parameter, dtype=dtype)
