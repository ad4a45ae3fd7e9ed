"""The contract between a model and everything that trains it.

The module is ordinary PyTorch and never learns how it is parallelised. A Task is found by the
entry point group `torchrelay.task`; its factory is called as `factory(section, facts)` with the
recipe's ModelSection and the DataFacts, and raises RecipeError or ModelError when they do not fit.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportFormat:
    """How trained weights are written so that others can load them without torchrelay."""

    config: dict[str, Any] | None
    """Content of `config.json` (transformers), or None when the weights stand alone."""
    convert: Callable[[str, torch.Tensor], Sequence[tuple[str, torch.Tensor]]]
    """Our name and full tensor to the exported names and tensors; empty leaves the tensor out."""
    extra: Callable[[], Sequence[tuple[str, torch.Tensor]]]
    """Tensors that the format demands and the model does not have (zero biases), or none."""


class Task(Protocol):
    """Builds the module and says what its loss is. Methods are pure but for the module they are given."""

    def build(self, seed: int) -> nn.Module:
        """The module, on the meta device where the kind allows it; same on every rank.

        `seed` is the run's: whatever is drawn here follows from it.

        Parameters that are not on meta are taken as they are and must already be equal on all ranks.
        """

    def initial(self, name: str, like: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """The first value of the parameter or buffer `name` that `build` left on meta.

        A full fp32 CPU tensor of `like`'s shape. `generator` is seeded from (run seed, name) only, so
        the weights do not depend on how many processes there are.
        """

    def loss(self, module: Callable[..., Any], tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Sum of the losses of all targets in the micro-batch: a 0-dim fp32 tensor with a graph.

        `module` is the module that `build` made, possibly wrapped; call it, never reach into it.
        """

    def blocks(self, module: nn.Module) -> Sequence[nn.Module]:
        """The repeated parts in forward order: the units of sharding and recompute. May be empty."""

    def export(self) -> ExportFormat:
        """How to write the weights for others."""


class TextTask(Task, Protocol):
    """A Task whose module predicts the next token."""

    def logits(self, module: Callable[..., Any], tokens: torch.Tensor) -> torch.Tensor:
        """Scores of the token after every position: [samples, length] to [samples, length, vocabulary]."""
