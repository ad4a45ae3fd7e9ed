"""The contract of what carries a scheme out, and what all engines share.

An engine is found by the entry point group `torchrelay.engine`; its factory is called as
`factory(task, placement)` and returns an engine that is ready to train. The order of what is
applied to the module is the same everywhere and visible in each factory:
recompute, shard, materialise.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from torchrelay.core.errors import ModelError
from torchrelay.parallel.world import World

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """How a module is to be spread."""

    world: World
    replicate: int
    shard: int
    bf16: bool
    recompute: bool
    reshard_after_forward: bool
    seed: int
    """Decides the initial weights."""


@dataclass(frozen=True, slots=True)
class Unit:
    """One micro-batch of the step as an engine runs it."""

    tensors: Tensors
    weight: float
    """Factor of its loss sum in the step's objective; 0 for a unit that only keeps ranks in step."""
    seed: int
    """Seeds the generators of torch, so that randomness belongs to the unit and not to the rank."""


class Engine(Protocol):
    """Runs a spread module. Every method is a collective over all ranks."""

    @property
    def module(self) -> nn.Module:
        """The module whose parameters (tensors or DTensors) are trained; names as the task made them."""

    def forward_backward(self, units: Sequence[Unit]) -> torch.Tensor:
        """Gradients of one step: the same number of units on every rank, exchanged once, at the last.

        Returns this rank's unweighted loss sum, a 0-dim tensor on the device. With `weight` =
        ranks / (targets of the whole step) the gradients are those of the mean over all targets.
        """

    def loss(self, tensors: Tensors) -> torch.Tensor:
        """Loss sum of a batch without gradients; every rank calls it equally often."""

    def gradients(self) -> list[torch.Tensor]:
        """The gradients as this rank holds them: whole tensors, or its shards. May be changed in place."""

    def norm_share(self) -> float:
        """Part of the squared gradient norm: all ranks' parts sum to the whole.

        So that the norm travels with the step's one small exchange. Not a collective.
        """


def require_trainable(module: nn.Module) -> None:
    """ModelError when there is nothing to train."""
    if not any(p.requires_grad for p in module.parameters()):
        raise ModelError("the model has no parameter to train")


def share_buffers(module: nn.Module) -> None:
    """Give every rank rank 0's saved buffers (running statistics). A collective of the default group."""
    persistent = module.state_dict(keep_vars=True)
    for name, buffer in module.named_buffers():
        if name in persistent:
            dist.broadcast(buffer, src=0)


def run_units(
    units: Sequence[Unit],
    loss_of: Callable[[Tensors], torch.Tensor],
    holding_back: Callable[[], AbstractContextManager[None]],
    device: torch.device,
) -> torch.Tensor:
    """Forward and backward of every unit; `holding_back()` surrounds all but the last."""
    total = None
    for unit in units[:-1]:
        with holding_back():
            total = _add(total, _run_unit(unit, loss_of, device), unit)
    total = _add(total, _run_unit(units[-1], loss_of, device), units[-1])
    return torch.zeros((), device=device) if total is None else total


def _run_unit(unit: Unit, loss_of: Callable[[Tensors], torch.Tensor], device: torch.device) -> torch.Tensor:
    seed_torch(unit.seed, device)
    loss = loss_of(unit.tensors)
    # As the gradient of the loss rather than a factor of it: one operation less each way.
    loss.backward(torch.full_like(loss, unit.weight))  # type: ignore[no-untyped-call]  # torch has no types
    return loss.detach()


def _add(total: torch.Tensor | None, loss: torch.Tensor, unit: Unit) -> torch.Tensor | None:
    if not unit.weight:
        return total
    return loss if total is None else total + loss


def seed_torch(seed: int, device: torch.device) -> None:
    """Seed torch's generator of the CPU and of the device."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)


def to_device(tensors: Tensors, device: torch.device) -> Tensors:
    """The tensors on the device, in a dictionary of the model's own; on the CPU, the same tensors."""
    if device.type == "cpu":
        return dict(tensors)
    return {name: tensor.to(device, non_blocking=True) for name, tensor in tensors.items()}


def autocast(device: torch.device, *, bf16: bool) -> AbstractContextManager[object]:
    """The context of forward passes in bf16, or nothing."""
    return torch.autocast(device.type, dtype=torch.bfloat16) if bf16 else nullcontext()


def local_gradients(parameters: Iterable[nn.Parameter]) -> list[torch.Tensor]:
    """The gradients that exist, as this rank holds them."""
    grads = [p.grad for p in parameters if p.grad is not None]
    return [grad.to_local() if isinstance(grad, DTensor) else grad for grad in grads]


_FLAT_ELEMENTS = 2**18
"""Below this, one copy of all tensors is cheaper than one call for each."""


def squared_norm(tensors: list[torch.Tensor]) -> float:
    """Sum of the squares of all elements."""
    if not tensors:
        return 0.0
    if sum(map(torch.numel, tensors)) < _FLAT_ELEMENTS and len({t.dtype for t in tensors}) == 1:
        flat = torch._C._nn.flatten_dense_tensors(tensors)
        return float(torch.dot(flat, flat))
    return float(torch.linalg.vector_norm(torch.stack(torch._foreach_norm(tensors)))) ** 2
