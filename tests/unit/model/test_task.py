"""What every kind of task must keep, run over all of them."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.unit.model.support import (
    DOCUMENTS,
    IMAGES,
    SMALL,
    TINY_VIT,
    TOKENS,
    decoder_task,
    image_batch,
    shake,
    text_batch,
    with_weights,
)
from torchrelay.model.huggingface import build_huggingface_task
from torchrelay.model.python import build_python_task
from torchrelay.model.task import Task
from torchrelay.recipe.model_schema import HuggingFaceSection, ModelSection

TINY_LLAMA = {
    "model_type": "llama",
    "vocab_size": 65,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
}


class Regression(nn.Module):
    """A user's module: the squared error of every sample."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, tensors: dict[str, torch.Tensor]) -> torch.Tensor:
        return F.mse_loss(self.layers(tensors["x"])[:, 0], tensors["y"], reduction="none")


class MeanRegression(Regression):
    """The same, as a mean."""

    def forward(self, tensors: dict[str, torch.Tensor]) -> torch.Tensor:
        return super().forward(tensors).mean()


def numbers() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    return {"x": torch.randn(6, 4, generator=generator), "y": torch.randn(6, generator=generator)}


def documents() -> dict[str, torch.Tensor]:
    tokens = text_batch()["tokens"]
    mask = torch.ones_like(tokens)
    for row, length in enumerate([16, 3, 9, 1, 12, 16]):
        mask[row, length:] = 0
    return {"tokens": tokens * mask, "attention_mask": mask, "labels": torch.tensor([0, 1, 2, 3, 4, 0])}


def huggingface(task: str) -> Task:
    section = HuggingFaceSection(config=TINY_LLAMA, task=task)
    return build_huggingface_task(
        ModelSection(huggingface=section), TOKENS if "causal" in task else DOCUMENTS
    )


def images() -> Task:
    section = HuggingFaceSection(config=TINY_VIT, task="image-classification")
    return build_huggingface_task(ModelSection(huggingface=section), IMAGES)


def python(name: str) -> Task:
    return build_python_task(ModelSection(python=f"{__name__}:{name}"), TOKENS)


KINDS: dict[str, tuple[Callable[[], Task], Callable[[], dict[str, torch.Tensor]]]] = {
    "llama": (lambda: decoder_task(kv_heads=2, **SMALL), text_batch),
    "gpt2": (lambda: decoder_task(architecture="gpt2", **SMALL), text_batch),
    "huggingface": (lambda: huggingface("causal-lm"), text_batch),
    "classification": (lambda: huggingface("sequence-classification"), documents),
    "images": (images, image_batch),
    "python": (lambda: python("Regression"), numbers),
    "python mean": (lambda: python("MeanRegression"), numbers),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> tuple[Task, nn.Module, dict[str, torch.Tensor]]:
    make, batch = KINDS[request.param]
    task = make()
    module = with_weights(task)
    shake(module)
    return task, module, batch()


def gradients(module: nn.Module) -> list[torch.Tensor]:
    found = [p.grad for p in module.parameters()]
    assert all(g is not None for g in found)
    return [g.clone() for g in found if g is not None]


def test_the_loss_is_one_fp32_number_with_a_graph(kind) -> None:
    task, module, batch = kind
    loss = task.loss(module, batch)
    assert (loss.shape, loss.dtype) == (torch.Size([]), torch.float32)
    loss.backward()
    assert all(bool(g.isfinite().all()) for g in gradients(module))
    assert any(bool(g.any()) for g in gradients(module))


def test_the_sum_over_micro_batches_is_the_whole_batch(kind) -> None:
    task, module, batch = kind
    whole = task.loss(module, batch)
    whole.backward()
    expected = gradients(module)
    module.zero_grad()
    parts = []
    for start, stop in [(0, 1), (1, 3), (3, 6)]:
        part = task.loss(module, {name: t[start:stop] for name, t in batch.items()})
        part.backward()
        parts.append(part.item())
    assert sum(parts) == pytest.approx(whole.item(), rel=1e-5)
    for ours, theirs in zip(gradients(module), expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


def test_the_loss_under_bf16_is_fp32_and_close(kind) -> None:
    task, module, batch = kind
    exact = task.loss(module, batch).item()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = task.loss(module, batch)
    rough.backward()
    assert rough.dtype == torch.float32
    assert rough.item() == pytest.approx(exact, rel=0.02)
    assert all(g.dtype == torch.float32 and bool(g.isfinite().all()) for g in gradients(module))


def test_the_loss_needs_no_graph_in_validation(kind) -> None:
    task, module, batch = kind
    expected = task.loss(module, batch).item()
    with torch.no_grad():
        loss = task.loss(module, batch)
    assert not loss.requires_grad
    assert loss.item() == pytest.approx(expected)


def test_every_build_gives_the_same_module_whatever_was_drawn_before(kind) -> None:
    task, _, _ = kind
    first = with_weights(task).state_dict()
    torch.manual_seed(99)
    second = with_weights(task).state_dict()
    assert list(first) == list(second)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_building_leaves_the_generators_alone(kind) -> None:
    task, _, _ = kind
    torch.manual_seed(4)
    expected = torch.rand(3)
    torch.manual_seed(4)
    task.build(seed=1)
    assert torch.equal(torch.rand(3), expected)


def test_a_built_module_is_in_training_mode(kind) -> None:
    task, _, _ = kind
    assert all(part.training for part in task.build(seed=1).modules())


def test_blocks_are_distinct_parts_with_parameters(kind) -> None:
    task, module, _ = kind
    blocks = task.blocks(module)
    assert len(blocks) == 2
    parts = list(module.modules())
    owned = [id(p) for block in blocks for p in block.parameters()]
    assert all(block in parts for block in blocks)
    assert owned
    assert len(set(owned)) == len(owned)


def test_every_saved_tensor_is_exported_under_one_name(kind) -> None:
    task, module, _ = kind
    export = task.export()
    exported = [pair for name, p in module.named_parameters() for pair in export.convert(name, p)]
    names = [name for name, _ in [*exported, *export.extra()]]
    assert len(set(names)) == len(names)
    assert sum(t.numel() for _, t in exported) == sum(p.numel() for p in module.parameters())


def test_a_frozen_bfloat16_copy_computes_with_fp32_angles_and_losses() -> None:
    task = decoder_task(**SMALL)
    module = with_weights(task)
    expected = task.loss(module, text_batch()).item()
    for parameter in module.parameters():
        parameter.data = parameter.data.bfloat16()
    loss = task.loss(module, text_batch())
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(expected, rel=0.02)
