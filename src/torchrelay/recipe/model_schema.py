"""The `model` section: exactly one of `decoder`, `huggingface`, `python`, `plugin`."""

from typing import Any, Literal

from pydantic import Field

from torchrelay.recipe.types import PositiveInt, Section


class DecoderSection(Section):
    """A decoder-only transformer of ours. Start from a preset, or give layers, width and heads."""

    preset: str | None = None
    """A named size, such as `1m`, `gpt2` or `llama3-8b` (see `torchrelay recipe reference`); the
    keys below override it."""
    architecture: Literal["llama", "gpt2"] | None = None
    """llama: RMSNorm, rotary positions, grouped-query attention, SwiGLU. gpt2: LayerNorm, learned
    positions, GELU. Default: the preset's, else llama."""
    layers: PositiveInt | None = None
    """Number of transformer blocks."""
    width: PositiveInt | None = None
    """Size of a token's vector; divisible by `heads`."""
    heads: PositiveInt | None = None
    """Attention heads."""
    kv_heads: PositiveInt | None = None
    """Heads of keys and values (grouped-query attention); divides `heads`. Default: `heads`."""
    feed_forward: PositiveInt | None = None
    """Inner size of the feed-forward part. Default: 8/3 of the width rounded up to a multiple of
    32 (llama), 4 times the width (gpt2)."""
    vocabulary: PositiveInt | None = None
    """Number of token ids. Default: the dataset's tokenizer's, which it may not be smaller than."""
    context: PositiveInt | None = None
    """Longest sequence in tokens. Default: the preset's, else `data.sequence_length`."""
    tied: bool | None = None
    """Whether the output head shares the embedding's weights."""
    bias: bool | None = None
    """Whether linear layers and LayerNorm have a bias (gpt2 only)."""
    rope_theta: float | None = Field(None, gt=0)
    """Base of the rotary frequencies (llama only)."""
    norm_eps: float | None = Field(None, gt=0)
    """Added to the variance in the norms."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Share of activations dropped during training."""


class HuggingFaceSection(Section):
    """A model of the transformers library, from a local folder or from a configuration."""

    path: str | None = None
    """Local folder with `config.json` and, unless `from_scratch`, the weights."""
    config: dict[str, Any] | None = None
    """The configuration itself, with `model_type`; the weights are then initialised anew."""
    from_scratch: bool = False
    """Initialise the weights even if `path` holds some."""
    task: Literal["causal-lm", "sequence-classification", "image-classification"] = "causal-lm"
    """What the model is trained for. Classification needs a dataset with labels, and gives the model
    their number and names; that of images also `data.decode: image`, or samples with `pixel_values`
    and `labels`."""


class ModelSection(Section):
    """What is trained: exactly one of the four kinds."""

    decoder: DecoderSection | None = None
    """A transformer of ours."""
    huggingface: HuggingFaceSection | None = None
    """A model of the transformers library (extra `hf`)."""
    python: str | None = None
    """`package.module:function` that returns a `torch.nn.Module` whose `forward(batch)` returns the
    loss of every sample, shape [samples], or their mean."""
    plugin: str | None = None
    """A task that another package registered under the entry point `torchrelay.task`."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the `python` function or the plug-in."""
