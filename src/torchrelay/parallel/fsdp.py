"""Engine `fsdp`: weights, gradients and optimizer sharded with torch's FSDP2 (`fully_shard`).

shard = all ranks is ZeRO-3; shard < ranks is HSDP: copies of the sharded model, replicate × shard.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from torchrelay.model.task import Task
from torchrelay.parallel.engine import (
    Placement,
    Tensors,
    Unit,
    local_gradients,
    require_trainable,
    run_units,
    squared_norm,
    to_device,
)
from torchrelay.parallel.materialise import materialise
from torchrelay.parallel.recompute import apply_recompute


class FsdpEngine:
    """See `torchrelay.parallel.engine.Engine`."""

    def __init__(self, task: Task, module: nn.Module, placement: Placement) -> None:
        self._task = task
        self._module = module
        self._device = placement.world.device
        self._num_copies = placement.replicate
        self._parameters = [p for p in module.parameters() if p.requires_grad]

    @property
    def module(self) -> nn.Module:
        """The module; its parameters are DTensors."""
        return self._module

    def forward_backward(self, units: Sequence[Unit]) -> torch.Tensor:
        """See `Engine.forward_backward`; gradients stay unsharded until the last unit."""
        return run_units(units, self._forward, self._holding_back, self._device)

    def loss(self, tensors: Tensors) -> torch.Tensor:
        """See `Engine.loss`."""
        with torch.no_grad():
            return self._forward(tensors)

    def gradients(self) -> list[torch.Tensor]:
        """See `Engine.gradients`."""
        return local_gradients(self._parameters)

    def norm_share(self) -> float:
        """See `Engine.norm_share`; every copy of the model holds the whole."""
        return squared_norm(self.gradients()) / self._num_copies

    def _forward(self, tensors: Tensors) -> torch.Tensor:
        return self._task.loss(self._module, to_device(tensors, self._device))

    @contextmanager
    def _holding_back(self) -> Iterator[None]:
        assert isinstance(self._module, FSDPModule)
        self._module.set_requires_gradient_sync(False)
        yield
        self._module.set_requires_gradient_sync(True)


def build_fsdp_engine(task: Task, placement: Placement) -> FsdpEngine:
    """Build, recompute, shard block by block, materialise."""
    module = task.build(placement.seed)
    blocks = task.blocks(module)
    if placement.recompute:
        apply_recompute(blocks)
    _apply_sharding(module, blocks, placement)
    materialise(module, task, seed=placement.seed, device=placement.world.device)
    return FsdpEngine(task, module, placement)


def build_mesh(placement: Placement) -> DeviceMesh:
    """The ranks as (replicate, shard), or (shard) when there is one copy; neighbours share a copy."""
    kind = placement.world.device.type
    if placement.replicate == 1:
        return init_device_mesh(kind, (placement.shard,), mesh_dim_names=("shard",))
    shape = (placement.replicate, placement.shard)
    return init_device_mesh(kind, shape, mesh_dim_names=("replicate", "shard"))


def _apply_sharding(module: nn.Module, blocks: Sequence[nn.Module], placement: Placement) -> None:
    require_trainable(module)
    policy = MixedPrecisionPolicy()
    if placement.bf16:
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    mesh = build_mesh(placement)
    for block in blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=placement.reshard_after_forward)
    # The root is needed again right at the start of backward.
    fully_shard(module, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
