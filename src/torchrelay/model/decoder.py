"""A Llama-style decoder: RMSNorm, rotary positions, grouped-query attention, SwiGLU.

Parameters are named as in transformers' LlamaForCausalLM without its leading `model.`, so that an
export renames and changes nothing. A tied head has no parameter of its own: it is a product with
the embedding, hence no name appears twice in a state dict.
Letters: x is [samples, length, width].
"""

from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import nn

from torchrelay.model.initial import STD, initial_parameter
from torchrelay.model.shape import DecoderShape
from torchrelay.model.sight import document_mask
from torchrelay.model.task import ExportFormat

_SCALED: Final = frozenset({"o_proj", "down_proj"})
_TABLES: Final = ("rotary.cos", "rotary.sin")


@dataclass(frozen=True, slots=True)
class Rotation:
    """The angles of one forward pass.

    Not a tuple on purpose: mixed-precision wrappers cast the tensors that they find in arguments, and
    angles need fp32.
    """

    cos: torch.Tensor
    """[length, 1, head size], or [samples, length, 1, head size] where samples differ."""
    sin: torch.Tensor
    """Like `cos`, negative in the first half."""

    def apply(self, heads: torch.Tensor) -> torch.Tensor:
        """Turn pairs (i, i + half) of [samples, length, heads, head size]; result in the input's type."""
        swapped = heads.roll(heads.shape[-1] // 2, -1)
        return torch.addcmul(heads * self.cos, swapped, self.sin).to(heads.dtype)


class Rotary(nn.Module):
    """Tables of cos and sin for every position; buffers that no checkpoint holds."""

    def __init__(self, shape: DecoderShape) -> None:
        super().__init__()
        for name in ("cos", "sin"):
            table = torch.empty(shape.context, 1, shape.head_size)
            self.register_buffer(name, table, persistent=False)

    def forward(self, length: int, positions: torch.Tensor | None = None) -> Rotation:
        """The first `length` positions, or those given, int64 [samples, length]."""
        chosen = slice(length) if positions is None else positions
        return Rotation(self.get_buffer("cos")[chosen], self.get_buffer("sin")[chosen])


class Attention(nn.Module):
    """Causal attention; several query heads may share one head of keys and values."""

    def __init__(self, shape: DecoderShape) -> None:
        super().__init__()
        self.q_proj = nn.Linear(shape.width, shape.width, bias=False)
        self.k_proj = nn.Linear(shape.width, shape.kv_width, bias=False)
        self.v_proj = nn.Linear(shape.width, shape.kv_width, bias=False)
        self.o_proj = nn.Linear(shape.width, shape.width, bias=False)
        self.head_size = shape.head_size
        self.grouped = shape.kv_heads != shape.heads
        self.dropout = shape.dropout

    def forward(self, x: torch.Tensor, rotation: Rotation, mask: torch.Tensor | None = None) -> torch.Tensor:
        """Mix every position with those before it, or with those that `mask` lets it see."""
        samples, length, _ = x.shape
        split = (samples, length, -1, self.head_size)
        queries = rotation.apply(self.q_proj(x).view(split))
        keys = rotation.apply(self.k_proj(x).view(split))
        values = self.v_proj(x).view(split)
        mixed = F.scaled_dot_product_attention(
            queries.transpose(1, 2),
            keys.transpose(1, 2),
            values.transpose(1, 2),
            attn_mask=mask,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=mask is None,
            enable_gqa=self.grouped,
        )
        output: torch.Tensor = self.o_proj(mixed.transpose(1, 2).flatten(2))
        return output


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, shape: DecoderShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.width, shape.feed_forward, bias=False)
        self.up_proj = nn.Linear(shape.width, shape.feed_forward, bias=False)
        self.down_proj = nn.Linear(shape.feed_forward, shape.width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Every position on its own."""
        output: torch.Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return output


class Block(nn.Module):
    """One layer: the unit of sharding and recompute."""

    def __init__(self, shape: DecoderShape) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(shape.width, eps=shape.norm_eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = nn.RMSNorm(shape.width, eps=shape.norm_eps)
        self.mlp = FeedForward(shape)
        self.dropout = shape.dropout

    def forward(self, x: torch.Tensor, rotation: Rotation, mask: torch.Tensor | None = None) -> torch.Tensor:
        """Add attention, then the feed-forward part."""
        x = x + self._drop(self.self_attn(self.input_layernorm(x), rotation, mask))
        return x + self._drop(self.mlp(self.post_attention_layernorm(x)))

    def _drop(self, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x, self.dropout, self.training) if self.dropout else x


class LlamaDecoder(nn.Module):
    """Tokens [samples, length] to scores of the next token [samples, length, vocabulary]."""

    def __init__(self, shape: DecoderShape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.rotary = Rotary(shape)
        self.layers = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.width, eps=shape.norm_eps)
        self.lm_head = None if shape.tied else nn.Linear(shape.width, shape.vocabulary, bias=False)

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
        x = self.embed_tokens(tokens)
        rotation = self.rotary(tokens.shape[1], positions)
        mask = None if documents is None else document_mask(documents)
        for layer in self.layers:
            x = layer(x, rotation, mask)
        x = self.norm(x)
        scores: torch.Tensor = (
            F.linear(x, self.embed_tokens.weight) if self.lm_head is None else self.lm_head(x)
        )
        return scores


def initial_llama(
    shape: DecoderShape, name: str, like: torch.Tensor, generator: torch.Generator
) -> torch.Tensor:
    """See `Task.initial`; the rotary tables are computed, the parameters drawn."""
    if name in _TABLES:
        return _rotary_table(shape, name)
    return initial_parameter(name, like.shape, generator, scaled=_SCALED, layers=shape.layers)


def export_llama(shape: DecoderShape, end_token: int | None) -> ExportFormat:
    """A LlamaForCausalLM of transformers."""
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "float32",
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.width,
        "intermediate_size": shape.feed_forward,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_size,
        "hidden_act": "silu",
        "max_position_embeddings": shape.context,
        "initializer_range": STD,
        "rms_norm_eps": shape.norm_eps,
        "rope_theta": shape.rope_theta,
        "attention_bias": False,
        "attention_dropout": shape.dropout,
        "mlp_bias": False,
        "tie_word_embeddings": shape.tied,
        "bos_token_id": end_token,
        "eos_token_id": end_token,
        "use_cache": True,
    }
    return ExportFormat(config=config, convert=_convert, extra=list)


def _convert(name: str, tensor: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
    if name in _TABLES:
        return []
    return [(name if name.startswith("lm_head.") else f"model.{name}", tensor)]


def _rotary_table(shape: DecoderShape, name: str) -> torch.Tensor:
    exponents = torch.arange(0, shape.head_size, 2, dtype=torch.float32) / shape.head_size
    angles = torch.outer(torch.arange(shape.context, dtype=torch.float32), 1.0 / shape.rope_theta**exponents)
    if name == "rotary.cos":
        halves = (angles.cos(), angles.cos())
    else:
        halves = (-angles.sin(), angles.sin())
    return torch.cat(halves, dim=1).unsqueeze(1)
