"""The GPT-2 decoder against transformers, and what only its own code decides."""

from pathlib import Path

import pytest
import torch

from tests.unit.model.support import ODD, SMALL, decoder_task, shake, text_batch, with_weights, write_export

GPT2S = [section for section in ODD if "architecture" in section or "preset" in section]


@pytest.mark.parametrize("section", [{"preset": "gpt2-nano"}, *GPT2S])
def test_transformers_computes_the_same_scores_from_the_export(section: dict, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, GPT2LMHeadModel

    task = decoder_task(**section)
    module = with_weights(task)
    shake(module)
    write_export(task, module, tmp_path)
    other, report = AutoModelForCausalLM.from_pretrained(
        tmp_path, local_files_only=True, output_loading_info=True
    )
    assert isinstance(other, GPT2LMHeadModel)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    tokens = text_batch()["tokens"]
    with torch.no_grad():
        torch.testing.assert_close(other(tokens).logits, task.logits(module, tokens), atol=1e-5, rtol=1e-5)
    assert (other.config.eos_token_id, other.config.bos_token_id) == (3, 3)


@pytest.mark.parametrize(("bias", "extra"), [(True, 0), (False, 13)])
def test_missing_biases_are_exported_as_zeros(bias: bool, extra: int) -> None:
    added = decoder_task(architecture="gpt2", bias=bias, **SMALL).export().extra()
    assert len(added) == extra
    assert all(name.endswith(".bias") and not tensor.any() for name, tensor in added)


def test_the_export_counts_sizes_on_meta_tensors_too() -> None:
    task = decoder_task(architecture="gpt2", **SMALL)
    export = task.export()
    weight = task.build(seed=1).get_parameter("h.0.attn.c_attn.weight")
    assert [(n, t.shape) for n, t in export.convert("h.0.attn.c_attn.weight", weight)] == [
        ("transformer.h.0.attn.c_attn.weight", torch.Size([32, 96]))
    ]


@pytest.mark.parametrize("section", GPT2S)
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


def test_the_published_presets_use_the_tanh_gelu() -> None:
    published = decoder_task(preset="gpt2").export().config
    ours = decoder_task(preset="gpt2-nano").export().config
    assert published is not None
    assert ours is not None
    assert (published["activation_function"], ours["activation_function"]) == ("gelu_new", "gelu")


def test_first_weights_are_small_at_the_end_of_branches() -> None:
    module = with_weights(decoder_task(architecture="gpt2", layers=8, width=64, heads=4))
    weights = dict(module.named_parameters())
    for name, std in [
        ("attn.c_proj", 0.005),
        ("mlp.c_proj", 0.005),
        ("attn.c_attn", 0.02),
        ("mlp.c_fc", 0.02),
    ]:
        assert float(weights[f"h.3.{name}.weight"].detach().std()) == pytest.approx(std, rel=0.1)
        assert not weights[f"h.3.{name}.bias"].any()
    assert torch.equal(weights["ln_f.weight"], torch.ones(64))


def test_dropout_drops_in_training_only() -> None:
    module = with_weights(decoder_task(architecture="gpt2", dropout=0.5, **SMALL))
    tokens = text_batch(2)["tokens"]
    assert not torch.equal(module(tokens), module(tokens))
    module.eval()
    plain = with_weights(decoder_task(architecture="gpt2", **SMALL))
    assert torch.equal(module(tokens), plain(tokens))
