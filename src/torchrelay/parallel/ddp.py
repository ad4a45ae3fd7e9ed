"""Engine `ddp`: every rank holds the model; gradients are averaged with torch's DDP."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

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

    @property
    def module(self) -> nn.Module:
        """The module itself, not its wrapper."""
        return self._module

    def forward_backward(self, units: Sequence[Unit]) -> torch.Tensor:
        """See `Engine.forward_backward`."""
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
        call = DistributedDataParallel(
            module,
            gradient_as_bucket_view=True,
            # Running statistics (batch norm) would otherwise differ between ranks.
            broadcast_buffers=any(name in module.state_dict() for name, _ in module.named_buffers()),
        )
    return DdpEngine(task, module, call, placement)
