"""The Llama decoder against transformers, and what only its own code decides."""

import math
from pathlib import Path

import pytest
import torch
from torch.utils._pytree import tree_leaves

from tests.unit.model.support import (
    ODD,
    SMALL,
    TOKENS,
    decoder_task,
    shake,
    text_batch,
    with_weights,
    write_export,
)
from torchrelay.model.decoder import Rotation
from torchrelay.model.decoder_task import DecoderTask

LLAMAS = [section for section in ODD if "architecture" not in section and "preset" not in section]


@pytest.mark.parametrize("section", [SMALL, *LLAMAS])
def test_transformers_computes_the_same_scores_from_the_export(section: dict, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, LlamaForCausalLM

    task = decoder_task(**section)
    module = with_weights(task)
    shake(module)
    write_export(task, module, tmp_path)
    other, report = AutoModelForCausalLM.from_pretrained(
        tmp_path, local_files_only=True, output_loading_info=True
    )
    assert isinstance(other, LlamaForCausalLM)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    tokens = text_batch()["tokens"]
    with torch.no_grad():
        torch.testing.assert_close(other(tokens).logits, task.logits(module, tokens), atol=1e-5, rtol=1e-5)
    assert (other.config.eos_token_id, other.config.bos_token_id) == (3, 3)


def test_parameter_names_are_those_of_transformers() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    task = decoder_task(**SMALL)
    export = task.export()
    with torch.device("meta"):
        theirs = LlamaForCausalLM(LlamaConfig(**export.config))
    expected = {name: p.shape for name, p in theirs.named_parameters()}
    ours = [export.convert(name, p) for name, p in task.build(seed=1).named_parameters()]
    assert all(len(pairs) == 1 for pairs in ours)
    assert {name: tensor.shape for pairs in ours for name, tensor in pairs} == expected


def test_the_rotary_tables_are_neither_saved_nor_exported() -> None:
    task = decoder_task(**SMALL)
    module = task.build(seed=1)
    buffers = dict(module.named_buffers())
    assert set(buffers) == {"rotary.cos", "rotary.sin"}
    assert not set(buffers) & set(module.state_dict())
    assert [pair for name, b in buffers.items() for pair in task.export().convert(name, b)] == []


def test_a_tied_head_has_no_name_of_its_own() -> None:
    assert not [name for name in decoder_task(**SMALL).build(seed=1).state_dict() if "lm_head" in name]
    assert "lm_head.weight" in decoder_task(tied=False, **SMALL).build(seed=1).state_dict()


def test_rotation_keeps_lengths_and_depends_on_distance_only() -> None:
    task = decoder_task(layers=1, width=16, heads=1)
    assert isinstance(task, DecoderTask)
    tables = [task.initial(f"rotary.{n}", torch.empty(()), torch.Generator()) for n in ("cos", "sin")]
    rotation = Rotation(*tables)
    query, key = torch.randn(16), torch.randn(16)
    turned_q, turned_k = (rotation.apply(v.expand(1, 16, 1, 16))[0, :, 0] for v in (query, key))
    torch.testing.assert_close(turned_q.norm(dim=1), query.norm().expand(16))
    products = turned_q @ turned_k.T
    torch.testing.assert_close(products[1:, 1:], products[:-1, :-1], atol=1e-5, rtol=1e-5)
    assert not torch.allclose(products[0, 0], products[0, 5])


def test_rotation_is_exact_in_fp32_and_keeps_the_type_of_its_input() -> None:
    task = decoder_task(layers=1, width=8, heads=1)
    tables = [task.initial(f"rotary.{n}", torch.empty(()), torch.Generator()) for n in ("cos", "sin")]
    heads = torch.randn(1, 16, 1, 8).bfloat16()
    turned = Rotation(*tables).apply(heads)
    assert turned.dtype == torch.bfloat16
    assert torch.equal(turned, Rotation(*tables).apply(heads.float()).bfloat16())


def test_wrappers_that_cast_arguments_find_no_angles_in_them() -> None:
    rotation = Rotation(torch.ones(1, 1, 2), torch.ones(1, 1, 2))
    assert tree_leaves((rotation,)) == [rotation]


@pytest.mark.parametrize("section", [SMALL, *LLAMAS])
def test_no_position_sees_the_future(section: dict) -> None:
    task = decoder_task(**section)
    module = with_weights(task)
    shake(module)
    tokens = text_batch(2)["tokens"]
    changed = tokens.clone()
    changed[:, 9] = (tokens[:, 9] + 1) % 65
    with torch.no_grad():
        before, after = module(tokens), module(changed)
    torch.testing.assert_close(after[:, :9], before[:, :9])
    assert (after[:, 9:] - before[:, 9:]).abs().amax(-1).min() > 1e-6


def test_a_shorter_text_than_the_context_is_read_the_same() -> None:
    module = with_weights(decoder_task(context=40, **SMALL))
    tokens = text_batch(2)["tokens"]
    with torch.no_grad():
        torch.testing.assert_close(module(tokens[:, :5]), module(tokens)[:, :5], atol=1e-6, rtol=1e-5)


def test_first_weights_are_small_at_the_end_of_branches() -> None:
    module = with_weights(decoder_task(layers=8, width=64, heads=4))
    weights = dict(module.named_parameters())
    for name, std in [("self_attn.o_proj", 0.005), ("mlp.down_proj", 0.005), ("self_attn.q_proj", 0.02)]:
        assert float(weights[f"layers.3.{name}.weight"].detach().std()) == pytest.approx(std, rel=0.1)
    assert torch.equal(weights["norm.weight"], torch.ones(64))
    loss = decoder_task(**SMALL).loss(with_weights(decoder_task(**SMALL)), text_batch())
    assert loss.item() / 88 == pytest.approx(math.log(TOKENS.vocabulary or 0), abs=0.1)


def test_dropout_drops_in_training_only() -> None:
    module = with_weights(decoder_task(dropout=0.5, **SMALL))
    tokens = text_batch(2)["tokens"]
    assert not torch.equal(module(tokens), module(tokens))
    module.eval()
    assert torch.equal(module(tokens), module(tokens))
    plain = with_weights(decoder_task(**SMALL))
    assert torch.equal(module(tokens), plain(tokens))
