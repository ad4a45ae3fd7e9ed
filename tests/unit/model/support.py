"""Small models with weights, and a way to write an export as others would find it."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

from torchrelay.data.batch import IGNORE_LABEL, DataFacts
from torchrelay.model.decoder_task import build_decoder_task
from torchrelay.model.task import Task, TextTask
from torchrelay.recipe.model_schema import DecoderSection, ModelSection

TOKENS = DataFacts(vocabulary=65, sequence_length=16, num_labels=None, end_token=3)
DOCUMENTS = DataFacts(vocabulary=65, sequence_length=16, num_labels=5, end_token=3)
IMAGES = DataFacts(
    vocabulary=None,
    sequence_length=None,
    num_labels=None,
    end_token=None,
    label_names=("cat", "dog", "owl"),
    arrays={"pixel_values": (3, 8, 8), "labels": ()},
)
TINY_VIT: dict[str, Any] = {
    "model_type": "vit",
    "image_size": 8,
    "patch_size": 4,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
SMALL: dict[str, Any] = {"layers": 2, "width": 32, "heads": 4}
ODD: list[dict[str, Any]] = [
    {"layers": 1, "width": 6, "heads": 1, "vocabulary": 67},
    {"layers": 1, "width": 24, "heads": 6, "kv_heads": 1},
    {"layers": 3, "width": 24, "heads": 6, "kv_heads": 2, "tied": False, "rope_theta": 500_000.0},
    {"layers": 2, "width": 24, "heads": 6, "kv_heads": 3, "feed_forward": 33, "norm_eps": 1e-3},
    {"architecture": "gpt2", "layers": 1, "width": 6, "heads": 1, "vocabulary": 67},
    {"architecture": "gpt2", "layers": 2, "width": 15, "heads": 5, "bias": False},
    {"architecture": "gpt2", "layers": 2, "width": 24, "heads": 2, "tied": False, "feed_forward": 33},
    {"preset": "gpt2", "layers": 2, "width": 24, "heads": 2, "vocabulary": 70, "context": 20},
    {"preset": "gpt2", "layers": 2, "width": 24, "heads": 2, "vocabulary": 70, "bias": False, "tied": False},
]
"""Decoders of unusual sizes; together they use every option that changes tensors."""


def decoder_task(*, facts: DataFacts = TOKENS, **section: Any) -> TextTask:
    return build_decoder_task(ModelSection(decoder=DecoderSection(**section)), facts)


def with_weights(task: Task, *, seed: int = 1) -> nn.Module:
    """The built module on the CPU; what was on meta is filled from the task."""
    module = task.build(seed=1)
    named = dict([*module.named_parameters(), *module.named_buffers()])
    on_meta = {name for name, tensor in named.items() if tensor.is_meta}
    if not on_meta:
        return module
    module.to_empty(device="cpu")
    with torch.no_grad():
        for index, (name, tensor) in enumerate([*module.named_parameters(), *module.named_buffers()]):
            generator = torch.Generator().manual_seed(1000 * seed + index)
            if name in on_meta:
                tensor.copy_(task.initial(name, tensor, generator))
    return module


def shake(module: nn.Module) -> None:
    """Move every parameter away from its first value, norms and biases too, as training would."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.empty_like(parameter).normal_(0, 0.1, generator=generator))


def text_batch(samples: int = 6, length: int = 16, *, vocabulary: int = 65) -> dict[str, torch.Tensor]:
    """Random tokens and their successors; some positions are not predicted."""
    generator = torch.Generator().manual_seed(5)
    text = torch.randint(0, vocabulary, (samples, length + 1), generator=generator)
    labels = text[:, 1:].clone()
    labels[0, length // 2 :] = IGNORE_LABEL
    return {"tokens": text[:, :-1].clone(), "labels": labels}


def image_batch() -> dict[str, torch.Tensor]:
    """Random images of three classes."""
    generator = torch.Generator().manual_seed(5)
    images = torch.rand(6, 3, 8, 8, generator=generator)
    return {"pixel_values": images, "labels": torch.tensor([0, 1, 2, 2, 1, 0])}


def write_export(task: Task, module: nn.Module, folder: Path) -> None:
    """`config.json` and `model.safetensors`, as the export of a run writes them."""
    export = task.export()
    persistent = module.state_dict(keep_vars=True)
    tensors = [(name, p.detach()) for name, p in module.named_parameters()]
    tensors += [(name, b) for name, b in module.named_buffers() if name in persistent]
    written = [pair for name, tensor in tensors for pair in export.convert(name, tensor)]
    written += export.extra()
    assert len({name for name, _ in written}) == len(written)
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(export.config))
    save_file(dict(written), folder / "model.safetensors", metadata={"format": "pt"})
