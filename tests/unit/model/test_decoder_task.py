import pytest
import torch

from tests.unit.model.support import ODD, SMALL, TOKENS, decoder_task, text_batch, with_weights
from torchrelay.core.errors import ModelError, RecipeError
from torchrelay.core.plugins import load_plugin
from torchrelay.model.decoder_task import build_decoder_task
from torchrelay.recipe.model_schema import DecoderSection, ModelSection


def test_the_entry_point_leads_here() -> None:
    assert load_plugin("task", "decoder") is build_decoder_task


def test_another_kind_of_model_is_refused() -> None:
    with pytest.raises(ModelError, match=r"no model\.decoder"):
        build_decoder_task(ModelSection(python="a:b"), TOKENS)


def test_what_does_not_fit_is_refused_when_the_task_is_made() -> None:
    with pytest.raises(RecipeError, match=r"model\.decoder\.heads"):
        build_decoder_task(ModelSection(decoder=DecoderSection(layers=1, width=8, heads=3)), TOKENS)


@pytest.mark.parametrize("section", ODD)
def test_everything_is_on_meta_and_gets_a_first_value_of_its_shape(section: dict) -> None:
    task = decoder_task(**section)
    module = task.build(seed=1)
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        value = task.initial(name, tensor, torch.Generator())
        assert tensor.is_meta
        assert (value.shape, value.dtype, value.device.type) == (tensor.shape, torch.float32, "cpu")


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_blocks_are_the_layers_in_order(architecture: str) -> None:
    task = decoder_task(architecture=architecture, **SMALL)
    module = with_weights(task)
    ran: list[torch.nn.Module] = []
    blocks = task.blocks(module)
    for block in blocks:
        block.register_forward_pre_hook(lambda block, _: ran.append(block))
    module(text_batch(1)["tokens"])
    assert len(blocks) == 2
    assert ran == list(blocks)


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_recomputed_blocks_give_the_same_gradients(architecture: str) -> None:
    from functools import partial

    from torch.utils.checkpoint import checkpoint

    task = decoder_task(architecture=architecture, **SMALL)
    plain, sparing = with_weights(task), with_weights(task)
    for block in task.blocks(sparing):
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    for module in (plain, sparing):
        task.loss(module, text_batch()).backward()
    for a, b in zip(plain.parameters(), sparing.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_a_few_steps_learn_a_text_by_heart(architecture: str) -> None:
    task = decoder_task(architecture=architecture, **SMALL)
    module = with_weights(task)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
    batch = text_batch(2, 8)
    targets = 12
    for _ in range(60):
        optimizer.zero_grad()
        loss = task.loss(module, batch) / targets
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.5
