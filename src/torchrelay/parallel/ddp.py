"""Engine `ddp`: every rank holds the model; gradients are averaged with torch's DDP."""

import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from torchrelay.model.seed import seeded
from torchrelay.model.task import Task
from torchrelay.parallel.engine import (
    Placement,
    Tensors,
    Unit,
    autocast,
    local_gradients,
    require_trainable,
    run_units,
    squared_norm,
    to_device,
)
from torchrelay.parallel.materialise import materialise
from torchrelay.parallel.recompute import apply_recompute


class DdpEngine:
    """See `torchrelay.parallel.engine.Engine`."""

    def __init__(self, task: Task, module: nn.Module, placement: Placement) -> None:
        self._task = task
        self._module = module
        self._call: Callable[..., Any] = module
        self._device = placement.world.device
        self._num_ranks = placement.world.size
        self._bf16 = placement.bf16
        self._parameters = [p for p in module.parameters() if p.requires_grad]

    @property
    def module(self) -> nn.Module:
        """The module itself, not its wrapper."""
        return self._module

    def forward_backward(self, units: Sequence[Unit]) -> torch.Tensor:
        """See `Engine.forward_backward`."""
        if self._num_ranks > 1 and not isinstance(self._call, DistributedDataParallel):
            self._settle(units[-1])
        return run_units(units, self._forward, self._holding_back, self._device)

    def loss(self, tensors: Tensors) -> torch.Tensor:
        """See `Engine.loss`; runs the bare module, so nothing is exchanged."""
        with torch.no_grad(), autocast(self._device, bf16=self._bf16):
            return self._task.loss(self._module, to_device(tensors, self._device))

    def gradients(self) -> list[torch.Tensor]:
        """See `Engine.gradients`."""
        return local_gradients(self._parameters)

    def norm_share(self) -> float:
        """See `Engine.norm_share`; every rank holds the whole."""
        return squared_norm(self.gradients()) / self._num_ranks

    def _forward(self, tensors: Tensors) -> torch.Tensor:
        with autocast(self._device, bf16=self._bf16):
            return self._task.loss(self._call, to_device(tensors, self._device))

    def _settle(self, unit: Unit) -> None:
        """Wrap the module before the first step, and let DDP choose its final buckets.

        Two passes that change nothing. The first finds parameters that the loss does not reach: DDP
        must know of them. The second is for the buckets: DDP lays them out anew after its first
        backward, which with three or more ranks changes the order of the additions, so the first
        step after a resume would differ in the last bits from that step of an uninterrupted run.
        """
        buffers = [(buffer, buffer.clone()) for buffer in self._module.buffers()]
        self._try_out(unit)
        unused = torch.tensor([sum(p.grad is None for p in self._parameters)], device=self._device)
        dist.all_reduce(unused, op=dist.ReduceOp.MAX)
        self._forget_gradients()
        self._call = _wrap(self._module, has_unused=bool(unused.item()))
        self._try_out(unit)
        self._forget_gradients()
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)

    def _try_out(self, unit: Unit) -> None:
        copied = {name: tensor.clone() for name, tensor in unit.tensors.items()}
        with seeded(unit.seed):
            run_units([Unit(copied, 0.0, unit.seed)], self._forward, self._holding_back, self._device)

    def _forget_gradients(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None

    def _holding_back(self) -> AbstractContextManager[None]:
        if isinstance(self._call, DistributedDataParallel):
            return self._call.no_sync()
        return nullcontext()


def build_ddp_engine(task: Task, placement: Placement) -> DdpEngine:
    """Build, recompute, materialise; wrapped at the first step. One rank has nothing to exchange."""
    module = task.build(placement.seed)
    require_trainable(module)
    if placement.recompute:
        apply_recompute(task.blocks(module))
    materialise(module, task, seed=placement.seed, device=placement.world.device)
    return DdpEngine(task, module, placement)


def _wrap(module: nn.Module, *, has_unused: bool) -> DistributedDataParallel:
    # Running statistics (batch norm) would otherwise differ between ranks.
    synced = any(name in module.state_dict() for name, _ in module.named_buffers())
    with warnings.catch_warnings():  # newer torch has another name for it, which older torch lacks
        warnings.filterwarnings("ignore", message=".broadcast_buffers. is deprecated")
        return DistributedDataParallel(
            module,
            gradient_as_bucket_view=True,
            broadcast_buffers=synced,
            find_unused_parameters=has_unused,
        )
