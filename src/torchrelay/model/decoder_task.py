"""The task of our own decoders: predict the next token."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import torch
from torch import nn

from torchrelay.core.errors import ModelError
from torchrelay.data.batch import DataFacts
from torchrelay.model.decoder import LlamaDecoder, export_llama, initial_llama
from torchrelay.model.gpt2 import Gpt2Decoder, export_gpt2, initial_gpt2
from torchrelay.model.loss import sum_cross_entropy
from torchrelay.model.presets import resolve_shape
from torchrelay.model.shape import DecoderShape
from torchrelay.model.task import ExportFormat, TextTask
from torchrelay.recipe.model_schema import ModelSection


class _Family(NamedTuple):
    """What is particular to an architecture."""

    module: Callable[[DecoderShape], nn.Module]
    initial: Callable[[DecoderShape, str, torch.Tensor, torch.Generator], torch.Tensor]
    export: Callable[[DecoderShape, int | None], ExportFormat]
    blocks: str
    """Name of the list of layers."""


_FAMILIES: Final[Mapping[str, _Family]] = MappingProxyType(
    {
        "llama": _Family(LlamaDecoder, initial_llama, export_llama, "layers"),
        "gpt2": _Family(Gpt2Decoder, initial_gpt2, export_gpt2, "h"),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderTask:
    """A TextTask; see there for the contract of every method."""

    shape: DecoderShape
    end_token: int | None
    """Id of the mark between documents, written to the export's configuration."""

    def build(self, seed: int) -> nn.Module:
        """Everything on the meta device; nothing is drawn."""
        with torch.device("meta"):
            return self._family.module(self.shape)

    def initial(self, name: str, like: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Drawn for parameters, computed for the rotary tables."""
        return self._family.initial(self.shape, name, like, generator)

    def loss(self, module: Callable[..., Any], tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Cross-entropy summed over the labels that are not IGNORE_LABEL."""
        documents = tensors.get("documents")
        if documents is None:
            scores = module(tensors["tokens"])
        else:
            scores = module(tensors["tokens"], tensors["positions"], documents)
        return sum_cross_entropy(scores, tensors["labels"])

    def blocks(self, module: nn.Module) -> Sequence[nn.Module]:
        """The layers."""
        return list(module.get_submodule(self._family.blocks).children())

    def export(self) -> ExportFormat:
        """A model of the transformers library."""
        return self._family.export(self.shape, self.end_token)

    def logits(self, module: Callable[..., Any], tokens: torch.Tensor) -> torch.Tensor:
        """Scores of the next token after every position."""
        scores: torch.Tensor = module(tokens)
        return scores

    @property
    def _family(self) -> _Family:
        return _FAMILIES[self.shape.architecture]


def build_decoder_task(section: ModelSection, facts: DataFacts) -> TextTask:
    """The task of `model.decoder`. Raises RecipeError that lists everything that does not fit."""
    if section.decoder is None:
        raise ModelError("the recipe has no model.decoder")
    return DecoderTask(shape=resolve_shape(section.decoder, facts), end_token=facts.end_token)
