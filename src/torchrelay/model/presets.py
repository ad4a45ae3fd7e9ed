"""Named decoder sizes, and how a recipe's keys and the dataset turn one into a DecoderShape.

Pure: torch is not imported, so that a size can be counted before anything is built.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from torchrelay.core.plugins import nearest
from torchrelay.model.fit import demand_fit
from torchrelay.model.shape import Architecture, DecoderShape, Gelu, default_feed_forward
from torchrelay.recipe.model_schema import DecoderSection
from torchrelay.recipe.problem import Problem

if TYPE_CHECKING:  # its module imports torch
    from torchrelay.data.batch import DataFacts

_WHERE = "model.decoder"


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A decoder as far as its name decides it; None is filled in from other sizes or from the dataset."""

    architecture: Architecture = "llama"
    layers: int | None = None
    width: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    """None: as many as `heads`."""
    feed_forward: int | None = None
    """None: see `default_feed_forward`."""
    vocabulary: int | None = None
    """None: the dataset's."""
    context: int | None = None
    """None: `data.sequence_length`."""
    tied: bool = True
    bias: bool | None = None
    """None: True in gpt2."""
    gelu: Gelu = "exact"
    """exact costs a third of tanh on a CPU and learns the same; tanh is what GPT-2 was published with."""
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-5


def _llama2(layers: int, width: int, heads: int, kv_heads: int, feed_forward: int) -> Preset:
    return Preset(
        layers=layers,
        width=width,
        heads=heads,
        kv_heads=kv_heads,
        feed_forward=feed_forward,
        vocabulary=32_000,
        context=4096,
        tied=False,
    )


# The context is the 8,192 tokens of the main part of Llama 3's training: the longer contexts of the
# later releases come from a second stage with rescaled rotary frequencies.
_LLAMA3: Final = Preset(kv_heads=8, vocabulary=128_256, context=8192, tied=False, rope_theta=500_000.0)


def _llama3(layers: int, width: int, heads: int, feed_forward: int) -> Preset:
    return replace(_LLAMA3, layers=layers, width=width, heads=heads, feed_forward=feed_forward)


def _gpt2(layers: int, width: int, heads: int) -> Preset:
    return Preset(
        architecture="gpt2",
        layers=layers,
        width=width,
        heads=heads,
        vocabulary=50_257,
        context=1024,
        gelu="tanh",
    )


PRESETS: Final[Mapping[str, Preset]] = MappingProxyType(
    {
        # Ours: the name counts all parameters with a vocabulary in proportion (2k, 2k, 8k, then 32k to 50k).
        "1m": Preset(layers=4, width=128, heads=4),
        "5m": Preset(layers=6, width=256, heads=8, kv_heads=4),
        "15m": Preset(layers=8, width=384, heads=6, kv_heads=2),
        "60m": Preset(layers=16, width=512, heads=8, kv_heads=4),
        "110m": Preset(layers=12, width=768, heads=12),
        "350m": Preset(layers=24, width=1024, heads=16),
        "1b": Preset(layers=20, width=2048, heads=16, kv_heads=4),
        "3b": Preset(layers=28, width=3072, heads=24, kv_heads=8),
        "llama2-7b": _llama2(32, 4096, 32, 32, 11_008),
        "llama2-13b": _llama2(40, 5120, 40, 40, 13_824),
        "llama2-70b": _llama2(80, 8192, 64, 8, 28_672),
        "llama3-8b": _llama3(32, 4096, 32, 14_336),
        "llama3-70b": _llama3(80, 8192, 64, 28_672),
        "llama3-405b": _llama3(126, 16_384, 128, 53_248),
        "llama3.2-1b": replace(_llama3(16, 2048, 32, 8192), tied=True),
        "llama3.2-3b": replace(_llama3(28, 3072, 24, 8192), tied=True),
        # nanoGPT's setting for a CPU.
        "gpt2-nano": Preset(architecture="gpt2", layers=4, width=128, heads=4, context=64, bias=False),
        "gpt2": _gpt2(12, 768, 12),
        "gpt2-medium": _gpt2(24, 1024, 16),
        "gpt2-large": _gpt2(36, 1280, 20),
        "gpt2-xl": _gpt2(48, 1600, 25),
    }
)


def resolve_shape(section: DecoderSection, facts: "DataFacts") -> DecoderShape:
    """The preset with the section's keys laid over it, completed from the dataset.

    Raises RecipeError that lists every impossible combination with its recipe path.
    """
    draft = _merge(section)
    demand_fit([*_naming_problems(section), *_size_problems(draft), *_data_problems(draft, facts)])
    return _complete(draft, facts, section.dropout)


def _merge(section: DecoderSection) -> Preset:
    preset = PRESETS.get(section.preset or "", Preset())
    keys = {field.name for field in fields(Preset)} & set(DecoderSection.model_fields)
    given = {key: value for key in keys if (value := getattr(section, key)) is not None}
    return replace(preset, **given)


def _naming_problems(section: DecoderSection) -> Iterator[Problem]:
    preset = PRESETS.get(section.preset or "", Preset())
    if section.preset is not None and section.preset not in PRESETS:
        close = nearest(section.preset, list(PRESETS))
        yield Problem(
            f"{_WHERE}.preset",
            f"there is no preset {section.preset!r}{close}",
            f"presets: {', '.join(PRESETS)}",
        )
    elif section.preset and section.architecture not in (None, preset.architecture):
        yield Problem(
            f"{_WHERE}.architecture",
            f"{section.architecture}, but the preset {section.preset!r} is a {preset.architecture}",
            "leave one of the two out",
        )
    for key in ("layers", "width", "heads"):
        if section.preset is None and getattr(section, key) is None:
            yield Problem(f"{_WHERE}.{key}", "is missing", "give it, or start from a preset")
    yield from _foreign_problems(section, section.architecture or preset.architecture)


def _foreign_problems(section: DecoderSection, architecture: Architecture) -> Iterator[Problem]:
    if architecture == "llama" and section.bias is not None:
        yield Problem(f"{_WHERE}.bias", "only gpt2 has biases to choose, this is a llama", "leave it out")
    if architecture == "gpt2" and section.rope_theta is not None:
        yield Problem(
            f"{_WHERE}.rope_theta", "only llama has rotary positions, this is a gpt2", "leave it out"
        )
    if architecture == "gpt2" and section.kv_heads is not None:
        yield Problem(
            f"{_WHERE}.kv_heads", "only llama has grouped-query attention, this is a gpt2", "leave it out"
        )


def _size_problems(draft: Preset) -> Iterator[Problem]:
    heads, kv_heads = draft.heads, draft.kv_heads
    if draft.width and heads:
        if draft.width % heads:
            yield Problem(
                f"{_WHERE}.heads", f"{heads} does not divide width {draft.width}", _use_heads(draft)
            )
        elif draft.architecture == "llama" and draft.width // heads % 2:
            yield Problem(
                f"{_WHERE}.heads",
                f"{heads} heads of width {draft.width} have the odd size {draft.width // heads}, "
                "and rotary positions turn pairs",
                _use_heads(draft),
            )
    if heads and kv_heads and draft.architecture == "llama" and heads % kv_heads:
        yield Problem(
            f"{_WHERE}.kv_heads",
            f"{kv_heads} does not divide heads {heads}",
            f"use one of {_listed(_divisors(heads))}",
        )


def _data_problems(draft: Preset, facts: "DataFacts") -> Iterator[Problem]:
    if facts.vocabulary is None or facts.sequence_length is None:
        yield Problem("model.decoder", "learns from tokens, and the data has none", "use model.python")
        return
    if facts.num_labels is not None:
        yield Problem(
            "model.decoder",
            f"predicts tokens, but the documents carry one of {facts.num_labels} classes",
            "set data.reading to packed, or use model.huggingface",
        )
    if draft.vocabulary is not None and draft.vocabulary < facts.vocabulary:
        yield Problem(
            f"{_WHERE}.vocabulary",
            f"{draft.vocabulary} is smaller than the dataset's {facts.vocabulary} token ids",
            f"use {facts.vocabulary} or more",
        )
    if draft.context is not None and draft.context < facts.sequence_length:
        yield Problem(
            f"{_WHERE}.context",
            f"{draft.context} is shorter than data.sequence_length {facts.sequence_length}",
            f"raise it, or lower data.sequence_length to {draft.context}",
        )


def _complete(draft: Preset, facts: "DataFacts", dropout: float) -> DecoderShape:
    vocabulary = draft.vocabulary or facts.vocabulary
    context = draft.context or facts.sequence_length
    assert draft.layers and draft.width and draft.heads and vocabulary and context  # checked above
    return DecoderShape(
        architecture=draft.architecture,
        layers=draft.layers,
        width=draft.width,
        heads=draft.heads,
        kv_heads=draft.kv_heads or draft.heads,
        feed_forward=draft.feed_forward or default_feed_forward(draft.architecture, draft.width),
        vocabulary=vocabulary,
        context=context,
        tied=draft.tied,
        bias=draft.architecture == "gpt2" if draft.bias is None else draft.bias,
        gelu=draft.gelu,
        rope_theta=draft.rope_theta,
        norm_eps=draft.norm_eps,
        dropout=dropout,
    )


def _use_heads(draft: Preset) -> str:
    assert draft.width
    pairs = draft.architecture == "llama"
    valid = [n for n in _divisors(draft.width) if not pairs or draft.width // n % 2 == 0]
    return f"use one of {_listed(valid)}" if valid else "make width even"


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers))
