"""A GPT-2 style decoder: LayerNorm, learned positions, GELU, one matrix for queries, keys and values.

Parameters are named as in transformers' GPT2LMHeadModel without its leading `transformer.`; an
export transposes the matrices that it keeps as Conv1D. A tied head has no parameter of its own.
Letters: x is [samples, length, width].
"""

from collections.abc import Sequence
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import nn

from torchrelay.model.initial import STD, initial_parameter
from torchrelay.model.shape import DecoderShape
from torchrelay.model.sight import document_mask
from torchrelay.model.task import ExportFormat

_SCALED: Final = frozenset({"c_proj"})
_TRANSPOSED: Final = (".c_attn.weight", ".c_proj.weight", ".c_fc.weight")
_GELU_NAMES: Final = {"exact": "gelu", "tanh": "gelu_new"}


class Attention(nn.Module):
    """Causal attention."""

    def __init__(self, shape: DecoderShape) -> None:
        super().__init__()
        self.c_attn = nn.Linear(shape.width, 3 * shape.width, bias=shape.bias)
        self.c_proj = nn.Linear(shape.width, shape.width, bias=shape.bias)
        self.heads = shape.heads
        self.dropout = shape.dropout

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """Mix every position with those before it, or with those that `mask` lets it see."""
        samples, length, width = x.shape
        split = (samples, length, self.heads, width // self.heads)
        queries, keys, values = self.c_attn(x).split(width, dim=2)
        # The result lies in memory as [samples, length, heads, head size], so flattening copies nothing.
        mixed = F.scaled_dot_product_attention(
            queries.view(split).transpose(1, 2),
            keys.view(split).transpose(1, 2),
            values.view(split).transpose(1, 2),
            attn_mask=mask,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=mask is None,
        )
        output: torch.Tensor = self.c_proj(mixed.transpose(1, 2).flatten(2))
        return output


class FeedForward(nn.Module):
    """Two matrices with a GELU between them."""

    def __init__(self, shape: DecoderShape) -> None:
        super().__init__()
        self.c_fc = nn.Linear(shape.width, shape.feed_forward, bias=shape.bias)
        self.c_proj = nn.Linear(shape.feed_forward, shape.width, bias=shape.bias)
        self.approximate = "none" if shape.gelu == "exact" else "tanh"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Every position on its own."""
        output: torch.Tensor = self.c_proj(F.gelu(self.c_fc(x), approximate=self.approximate))
        return output


class Block(nn.Module):
    """One layer: the unit of sharding and recompute."""

    def __init__(self, shape: DecoderShape) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(shape.width, eps=shape.norm_eps, bias=shape.bias)
        self.attn = Attention(shape)
        self.ln_2 = nn.LayerNorm(shape.width, eps=shape.norm_eps, bias=shape.bias)
        self.mlp = FeedForward(shape)
        self.dropout = shape.dropout

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """Add attention, then the feed-forward part."""
        x = x + self._drop(self.attn(self.ln_1(x), mask))
        return x + self._drop(self.mlp(self.ln_2(x)))

    def _drop(self, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x, self.dropout, self.training) if self.dropout else x


class Gpt2Decoder(nn.Module):
    """Tokens [samples, length] to scores of the next token [samples, length, vocabulary]."""

    def __init__(self, shape: DecoderShape) -> None:
        super().__init__()
        self.wte = nn.Embedding(shape.vocabulary, shape.width)
        self.wpe = nn.Embedding(shape.context, shape.width)
        self.h = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.ln_f = nn.LayerNorm(shape.width, eps=shape.norm_eps, bias=shape.bias)
        self.lm_head = None if shape.tied else nn.Linear(shape.width, shape.vocabulary, bias=False)
        self.dropout = shape.dropout

    def forward(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor | None = None,
        documents: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """`length` is at most the shape's context.

        positions, documents: int64 [samples, length] where rows hold several documents; none is seen
        from another.
        """
        x = self.wte(tokens) + (
            self.wpe.weight[: tokens.shape[1]] if positions is None else self.wpe(positions)
        )
        if self.dropout:
            x = F.dropout(x, self.dropout, self.training)
        mask = None if documents is None else document_mask(documents)
        for layer in self.h:
            x = layer(x, mask)
        x = self.ln_f(x)
        scores: torch.Tensor = F.linear(x, self.wte.weight) if self.lm_head is None else self.lm_head(x)
        return scores


def initial_gpt2(
    shape: DecoderShape, name: str, like: torch.Tensor, generator: torch.Generator
) -> torch.Tensor:
    """See `Task.initial`."""
    return initial_parameter(name, like.shape, generator, scaled=_SCALED, layers=shape.layers)


def export_gpt2(shape: DecoderShape, end_token: int | None) -> ExportFormat:
    """A GPT2LMHeadModel of transformers, which always has biases: zeros where ours has none."""
    config: dict[str, Any] = {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "dtype": "float32",
        "vocab_size": shape.vocabulary,
        "n_positions": shape.context,
        "n_embd": shape.width,
        "n_layer": shape.layers,
        "n_head": shape.heads,
        "n_inner": shape.feed_forward,
        "activation_function": _GELU_NAMES[shape.gelu],
        "resid_pdrop": shape.dropout,
        "embd_pdrop": shape.dropout,
        "attn_pdrop": shape.dropout,
        "layer_norm_epsilon": shape.norm_eps,
        "initializer_range": STD,
        "tie_word_embeddings": shape.tied,
        "bos_token_id": end_token,
        "eos_token_id": end_token,
        "use_cache": True,
    }
    return ExportFormat(
        config=config, convert=_convert, extra=lambda: [] if shape.bias else _zero_biases(shape)
    )


def _convert(name: str, tensor: torch.Tensor) -> Sequence[tuple[str, torch.Tensor]]:
    if name.startswith("lm_head."):
        return [(name, tensor)]
    if name.endswith(_TRANSPOSED):
        tensor = tensor.t().contiguous()
    return [(f"transformer.{name}", tensor)]


def _zero_biases(shape: DecoderShape) -> list[tuple[str, torch.Tensor]]:
    sizes = {
        "ln_1": shape.width,
        "attn.c_attn": 3 * shape.width,
        "attn.c_proj": shape.width,
        "ln_2": shape.width,
        "mlp.c_fc": shape.feed_forward,
        "mlp.c_proj": shape.width,
    }
    biases = [
        (f"transformer.h.{layer}.{part}.bias", torch.zeros(size))
        for layer in range(shape.layers)
        for part, size in sizes.items()
    ]
    return [*biases, ("transformer.ln_f.bias", torch.zeros(shape.width))]
