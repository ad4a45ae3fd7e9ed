"""Engine `ddp`: every rank holds the model; gradients are averaged with torch's DDP."""

import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
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
    run_units,
    squared_norm,
    to_device,
)
from torchrelay.parallel.materialise import materialise
from torchrelay.parallel.recompute import apply_recompute


class DdpEngine:
    """See `torchrelay.parallel.engine.Engine`."""

    def __init__(self, task: Task, module: nn.Module, call: Callable[..., Any], placement: Placement) -> None:
        self._task = task
        self._module = module
        self._call = call
        self._device = placement.world.device
        self._num_ranks = placement.world.size
        self._bf16 = placement.bf16
        self._parameters = [p for p in module.parameters() if p.requires_grad]
        self._settled = not isinstance(call, DistributedDataParallel)

    @property
    def module(self) -> nn.Module:
        """The module itself, not its wrapper."""
        return self._module

    def forward_backward(self, units: Sequence[Unit]) -> torch.Tensor:
        """See `Engine.forward_backward`."""
        if not self._settled:
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
        """Let DDP choose its final buckets before the first step, by a pass that changes nothing.

        DDP lays its buckets out anew after its first backward. With three or more ranks that
        changes the order of the additions, so the first step after a resume would differ in the
        last bits from the same step of an uninterrupted run.
        """
        buffers = [(buffer, buffer.clone()) for buffer in self._module.buffers()]
        with seeded(unit.seed):
            run_units([replace(unit, weight=0.0)], self._forward, self._holding_back, self._device)
        for parameter in self._parameters:
            parameter.grad = None
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
        self._settled = True

    def _holding_back(self) -> AbstractContextManager[None]:
        if isinstance(self._call, DistributedDataParallel):
            return self._call.no_sync()
        return nullcontext()


def build_ddp_engine(task: Task, placement: Placement) -> DdpEngine:
    """Build, recompute, materialise, wrap. With one rank there is nothing to exchange and no wrapper."""
    module = task.build(placement.seed)
    if placement.recompute:
        apply_recompute(task.blocks(module))
    materialise(module, task, seed=placement.seed, device=placement.world.device)
    call: Callable[..., Any] = module
    if placement.world.size > 1:
        call = _wrap(module)
    return DdpEngine(task, module, call, placement)


def _wrap(module: nn.Module) -> DistributedDataParallel:
    # Running statistics (batch norm) would otherwise differ between ranks.
    synced = any(name in module.state_dict() for name, _ in module.named_buffers())
    with warnings.catch_warnings():  # newer torch has another name for it, which older torch lacks
        warnings.filterwarnings("ignore", message=".broadcast_buffers. is deprecated")
        return DistributedDataParallel(module, gradient_as_bucket_view=True, broadcast_buffers=synced)
