"""Give a module on the meta device its memory and its first weights, each rank only its share.

A parameter's first value depends on (run seed, its name) alone: not on the number of processes,
the sharding, or the order of creation. One whole parameter at a time exists on the CPU.
"""

import hashlib
from collections.abc import Iterator

import torch
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor

from torchrelay.model.task import Task


def materialise(module: nn.Module, task: Task, *, seed: int, device: torch.device) -> None:
    """Move to `device` what is real, allocate what is on meta, and fill it from the task. In place."""
    on_meta = [name for name, tensor in _tensors(module) if tensor.is_meta]
    module._apply(  # type: ignore[no-untyped-call]  # torch has no types here
        lambda t: torch.empty_like(t, device=device) if t.is_meta else t.to(device)
    )
    named = dict(_tensors(module))
    with torch.no_grad():
        for name in on_meta:
            generator = torch.Generator().manual_seed(name_seed(seed, name))
            _fill(named[name], task.initial(name, named[name], generator))


def name_seed(seed: int, name: str) -> int:
    """A 63-bit seed for one parameter."""
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def _tensors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()


def _fill(target: torch.Tensor, full: torch.Tensor) -> None:
    if isinstance(target, DTensor):
        # Every rank made the same whole tensor, so nothing needs to be sent.
        full = distribute_tensor(
            full.to(target.device), target.device_mesh, target.placements, src_data_rank=None
        )
    target.copy_(full)
