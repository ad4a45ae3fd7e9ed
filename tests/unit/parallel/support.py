"""A task small enough to look at: two blocks on the meta device, whose loss is a plain sum."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from tests.unit.checkpoint.support import ALONE
from torchrelay.model.task import ExportFormat
from torchrelay.parallel.engine import Placement


class Stack(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Dropout(dropout)) for _ in range(2)
        )
        self.register_buffer("scale", torch.empty(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        result: torch.Tensor = (x * self.scale).square().sum(1)
        return result


class StackTask:
    """See `torchrelay.model.task.Task`."""

    def __init__(self, *, dropout: float = 0.0, on_meta: bool = True) -> None:
        self.dropout = dropout
        self.on_meta = on_meta
        self.asked: list[str] = []

    def build(self, seed: int) -> nn.Module:
        with torch.device("meta" if self.on_meta else "cpu"):
            return Stack(self.dropout)

    def initial(self, name: str, like: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        self.asked.append(name)
        return torch.randn(like.shape, generator=generator)

    def loss(self, module: Callable[..., Any], tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
        total: torch.Tensor = module(tensors["x"]).sum().float()
        return total

    def blocks(self, module: nn.Module) -> Sequence[nn.Module]:
        return list(module.get_submodule("blocks").children())

    def export(self) -> ExportFormat:
        return ExportFormat(config=None, convert=lambda name, tensor: [(name, tensor)], extra=list)


def count_calls(module: nn.Module) -> list[nn.Module]:
    """Filled with a block's first layer every time it is run."""
    calls: list[nn.Module] = []
    for block in module.get_submodule("blocks").children():
        block[0].register_forward_hook(lambda layer, inputs, output: calls.append(layer))  # type: ignore[index]
    return calls


def placement(**fields: Any) -> Placement:
    values: dict[str, Any] = {
        "world": ALONE,
        "replicate": 1,
        "shard": 1,
        "bf16": False,
        "recompute": False,
        "reshard_after_forward": True,
        "seed": 7,
    }
    return Placement(**(values | fields))
