import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.unit.model.support import (
    DOCUMENTS,
    IMAGES,
    TINY_VIT,
    TOKENS,
    image_batch,
    shake,
    text_batch,
    write_export,
)
from tests.unit.model.test_task import TINY_LLAMA, documents
from torchrelay.core.errors import ModelError, RecipeError
from torchrelay.core.plugins import load_plugin
from torchrelay.data.batch import DataFacts
from torchrelay.model.huggingface import build_huggingface_task
from torchrelay.model.task import Task
from torchrelay.recipe.model_schema import HuggingFaceSection, ModelSection

TINY_GPT2 = {
    "model_type": "gpt2",
    "vocab_size": 65,
    "n_positions": 32,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
}
TINY_BERT = {
    "model_type": "bert",
    "vocab_size": 65,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 32,
}
TINY_RESNET = {
    "model_type": "resnet",
    "embedding_size": 4,
    "hidden_sizes": [4, 8],
    "depths": [1, 1],
    "layer_type": "basic",
}
CLASSES = "sequence-classification"


def task_of(facts: DataFacts = TOKENS, **section: Any) -> Task:
    return build_huggingface_task(ModelSection(huggingface=HuggingFaceSection(**section)), facts)


def refusal(facts: DataFacts = TOKENS, **section: Any) -> str:
    with pytest.raises(RecipeError) as caught:
        task_of(facts, **section)
    return str(caught.value)


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Path, Any]:
    """A folder as transformers writes it, in bf16, and the model in it."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(21)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**TINY_LLAMA)).bfloat16()
    model.save_pretrained(tmp_path / "saved")
    return tmp_path / "saved", model


def test_the_entry_point_leads_here() -> None:
    assert load_plugin("task", "huggingface") is build_huggingface_task


def test_another_kind_of_model_is_refused() -> None:
    with pytest.raises(ModelError, match=r"no model\.huggingface"):
        build_huggingface_task(ModelSection(plugin="x"), TOKENS)


def test_weights_come_from_the_folder_in_fp32(saved: tuple[Path, Any]) -> None:
    folder, model = saved
    module = task_of(path=str(folder)).build(seed=1)
    expected = dict(model.named_parameters())
    for name, parameter in module.named_parameters():
        assert parameter.dtype == torch.float32
        assert torch.equal(parameter, expected[name].float())


def test_from_scratch_ignores_the_weights_of_the_folder(saved: tuple[Path, Any]) -> None:
    folder, model = saved
    module = task_of(path=str(folder), from_scratch=True).build(seed=1)
    weight = module.get_parameter("model.layers.0.self_attn.q_proj.weight")
    assert weight.dtype == torch.float32
    assert not torch.equal(weight, model.model.layers[0].self_attn.q_proj.weight.float())
    assert float(weight.detach().std()) == pytest.approx(0.02, rel=0.1)


def test_the_seed_and_not_the_folder_decides_drawn_weights(saved: tuple[Path, Any], tmp_path: Path) -> None:
    folder, _ = saved
    moved = tmp_path / "moved"
    folder.rename(moved)
    first = task_of(path=str(moved), from_scratch=True).build(seed=1).state_dict()
    moved.rename(folder)
    second = task_of(path=str(folder), from_scratch=True).build(seed=1).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    other = task_of(path=str(folder), from_scratch=True).build(seed=2).state_dict()
    assert not torch.equal(other["lm_head.weight"], first["lm_head.weight"])


def test_weights_that_the_folder_lacks_are_never_drawn_silently(saved: tuple[Path, Any]) -> None:
    folder, _ = saved
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    for facts, kind in ((TOKENS, "causal-lm"), (DOCUMENTS, CLASSES)):
        with pytest.raises(ModelError, match=r"lacks 9 weights .* model\.layers\.2"):
            task_of(facts, path=str(folder), task=kind).build(seed=1)


def test_weights_of_another_size_are_refused(saved: tuple[Path, Any]) -> None:
    folder, _ = saved
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "vocab_size": 80}))
    with pytest.raises(RecipeError, match=r"model\.huggingface: transformers refuses it"):
        task_of(path=str(folder)).build(seed=1)


def test_a_classifier_gets_a_new_head_of_the_datasets_size(saved: tuple[Path, Any]) -> None:
    folder, model = saved
    task = task_of(DOCUMENTS, path=str(folder), task=CLASSES)
    first, second = task.build(seed=1), task.build(seed=1)
    assert first.training
    assert first.get_parameter("score.weight").shape == (5, 32)
    assert torch.equal(first.get_parameter("score.weight"), second.get_parameter("score.weight"))
    assert torch.equal(first.get_parameter("model.norm.weight"), model.model.norm.weight.float())


@pytest.mark.parametrize("config", [TINY_LLAMA, TINY_GPT2, {**TINY_LLAMA, "tie_word_embeddings": True}])
def test_an_export_is_read_back_with_the_same_scores(config: dict, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    task = task_of(config=config)
    module = task.build(seed=1)
    shake(module)
    write_export(task, module, tmp_path)
    other, report = AutoModelForCausalLM.from_pretrained(
        tmp_path, local_files_only=True, output_loading_info=True
    )
    assert not report["missing_keys"]
    assert other.config.use_cache
    tokens = text_batch()["tokens"]
    module.eval()
    with torch.no_grad():
        expected = task.logits(module, tokens)  # type: ignore[attr-defined]
        torch.testing.assert_close(other(tokens).logits, expected, atol=1e-5, rtol=1e-5)


def test_a_classifiers_export_is_read_back(tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification

    task = task_of(replace(DOCUMENTS, label_names=tuple("abcde")), config=TINY_LLAMA, task=CLASSES)
    module = task.build(seed=1)
    write_export(task, module, tmp_path)
    other = AutoModelForSequenceClassification.from_pretrained(tmp_path, local_files_only=True)
    assert other.config.num_labels == 5
    assert other.config.label2id["e"] == 4
    assert other.config.pad_token_id == 3
    assert torch.equal(other.score.weight, module.get_parameter("score.weight"))


@pytest.mark.parametrize("config", [TINY_VIT, TINY_RESNET])
def test_an_image_classifier_is_read_back_with_its_classes(config: dict, tmp_path: Path) -> None:
    from transformers import AutoModelForImageClassification

    task, batch = task_of(IMAGES, config=config, task="image-classification"), image_batch()
    module = task.build(seed=1)
    shake(module)
    task.loss(module, batch)  # moves the running statistics, where there are any
    write_export(task, module, tmp_path)
    other, report = AutoModelForImageClassification.from_pretrained(
        tmp_path, local_files_only=True, output_loading_info=True
    )
    assert not report["missing_keys"]
    assert other.config.id2label == {0: "cat", 1: "dog", 2: "owl"}
    assert other.config.label2id == {"cat": 0, "dog": 1, "owl": 2}
    scores = other(batch["pixel_values"]).logits
    expected = torch.nn.functional.cross_entropy(scores, batch["labels"], reduction="sum")
    torch.testing.assert_close(task.loss(module.eval(), batch), expected)
    assert len(task.blocks(module)) == 2


def test_images_that_the_model_does_not_take_are_told_when_they_are_read() -> None:
    facts = replace(IMAGES, arrays=None)
    task, batch = task_of(facts, config=TINY_VIT, task="image-classification"), image_batch()
    module = task.build(seed=1)
    wrong = {
        "images are 3 x 8 x 6, the model takes 3 x 8 x 8": {"pixel_values": torch.rand(6, 3, 8, 6)},
        "pixel_values are torch.uint8": {"pixel_values": batch["pixel_values"].byte()},
        r"labels torch.int64 \[6, 1\]": {"labels": batch["labels"][:, None]},
    }
    for said, part in wrong.items():
        with pytest.raises(ModelError, match=said):
            task.loss(module, {**batch, **part})
    with pytest.raises(ModelError, match="the samples have x"):
        task.loss(module, {"x": batch["labels"]})


def test_building_says_nothing_and_leaves_transformers_settings(saved: tuple[Path, Any], capfd) -> None:
    from transformers.utils import logging

    before = logging.get_verbosity(), logging.is_progress_bar_enabled()
    capfd.readouterr()
    task_of(DOCUMENTS, path=str(saved[0]), task=CLASSES).build(seed=1)
    assert capfd.readouterr() == ("", "")
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == before


def test_tied_weights_stay_one_parameter_and_are_exported_once() -> None:
    task = task_of(config=TINY_GPT2)
    module = task.build(seed=1)
    assert module.get_parameter("lm_head.weight") is module.get_parameter("transformer.wte.weight")
    export = task.export()
    weight = module.get_parameter("lm_head.weight")
    assert list(export.convert("lm_head.weight", weight)) == []
    assert [name for name, _ in export.convert("transformer.wte.weight", weight)] == [
        "transformer.wte.weight"
    ]


@pytest.mark.parametrize("config", [TINY_LLAMA, TINY_BERT, {**TINY_GPT2, "embd_pdrop": 0.0}])
def test_padding_does_not_change_a_documents_loss(config: dict) -> None:
    task = task_of(DOCUMENTS, config=config, task=CLASSES)
    module = task.build(seed=1).eval()
    batch = documents()
    whole = task.loss(module, batch).item()
    total = 0.0
    for row, length in enumerate(batch["attention_mask"].sum(1).tolist()):
        alone = {name: t[row : row + 1] for name, t in batch.items()}
        cut = {name: t if name == "labels" else t[:, :length] for name, t in alone.items()}
        total += task.loss(module, cut).item()
    assert total == pytest.approx(whole, rel=1e-5)


def test_attention_keeps_no_cache_in_training() -> None:
    task = task_of(config=TINY_LLAMA)
    module = task.build(seed=1)
    assert module(input_ids=text_batch()["tokens"]).get("past_key_values") is None
    assert task.export().config["use_cache"] is True  # type: ignore[index]


def test_an_unknown_model_type_is_answered_with_the_nearest() -> None:
    assert "config.model_type: transformers has no 'lama'; did you mean 'llama'?" in refusal(
        config={**TINY_LLAMA, "model_type": "lama"}
    )
    assert "transformers has no None" in refusal(config={"hidden_size": 3})


def test_a_key_that_is_nearly_right_is_a_slip() -> None:
    text = refusal(config={**TINY_LLAMA, "hiden_size": 64, "num_labels": 2, "rope_theta": 1e5})
    assert "model.huggingface.config.hiden_size: unknown key; did you mean 'hidden_size'?" in text
    assert "1 problem" in text


def test_sizes_that_transformers_refuses_are_recipe_errors() -> None:
    assert "model.huggingface.config: transformers refuses it" in refusal(
        config={**TINY_LLAMA, "hidden_size": 33}
    )
    with pytest.raises(RecipeError, match="must be divisible"):
        task_of(config={**TINY_GPT2, "n_embd": 33}).build(seed=1)


def test_what_does_not_fit_the_data_is_listed_at_once() -> None:
    facts = DataFacts(vocabulary=100, sequence_length=64, num_labels=None, end_token=None)
    text = refusal(facts, config=TINY_LLAMA)
    assert "2 problems" in text
    assert "config.vocab_size: vocab_size 65 is smaller than the dataset's 100 token ids" in text
    assert "data.sequence_length: 64 is longer than the 32 positions of the model (lower it to 32)" in text


def test_a_model_that_cannot_do_the_task_is_refused() -> None:
    text = refusal(config={"model_type": "vit"})
    assert "model.huggingface.task: transformers has no causal-lm model of type 'vit'" in text


def test_a_model_that_sees_the_answer_is_refused() -> None:
    with pytest.raises(ModelError, match="BertLMHeadModel sees the tokens that it is to predict"):
        task_of(config=TINY_BERT).build(seed=1)
    task_of(config={**TINY_BERT, "is_decoder": True}).build(seed=1)


def test_sizes_of_a_folder_are_told_with_its_path(saved: tuple[Path, Any]) -> None:
    facts = DataFacts(vocabulary=100, sequence_length=16, num_labels=None, end_token=None)
    assert "model.huggingface.path: vocab_size 65 is smaller" in refusal(facts, path=str(saved[0]))


def test_language_needs_tokens_without_classes() -> None:
    nothing = DataFacts(vocabulary=None, sequence_length=None, num_labels=None, end_token=None)
    assert "the data has none" in refusal(nothing, config=TINY_LLAMA)
    assert "the documents carry one of 5 classes" in refusal(DOCUMENTS, config=TINY_LLAMA)


def test_classification_needs_labels_of_the_same_number() -> None:
    text = refusal(TOKENS, config=TINY_LLAMA, task=CLASSES)
    assert "needs documents with labels, and the data has none" in text
    text = refusal(DOCUMENTS, config={**TINY_LLAMA, "num_labels": 3}, task=CLASSES)
    assert "config.num_labels: the model has 3 classes, the dataset 5" in text


def test_labels_that_the_reading_leaves_out_are_not_called_missing() -> None:
    text = refusal(replace(TOKENS, has_labels=True), config=TINY_LLAMA, task=CLASSES)
    assert (
        "data.reading: sequence-classification needs documents with labels, and this reading leaves" in text
    )
    assert "(set data.reading: documents)" in text and "has none" not in text


def test_a_decoder_that_classifies_needs_a_token_for_padding() -> None:
    facts = DataFacts(vocabulary=65, sequence_length=16, num_labels=5, end_token=None)
    assert "config.pad_token_id: pad_token_id is missing" in refusal(facts, config=TINY_LLAMA, task=CLASSES)
    task_of(facts, config={**TINY_LLAMA, "pad_token_id": 64}, task=CLASSES)


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "cannot read"),
        ({"config.json": "{"}, "is not valid JSON"),
        ({"config.json": "[]"}, "holds no mapping"),
        ({"config.json": "{}", "model.safetensors": ""}, "transformers refuses it"),
        ({"config.json": json.dumps(TINY_LLAMA)}, "holds no weights"),
    ],
)
def test_a_folder_that_holds_no_model_is_refused(files: dict[str, str], said: str, tmp_path: Path) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    text = refusal(path=str(tmp_path))
    assert "model.huggingface.path" in text
    assert said in text


def test_a_name_of_the_hub_is_not_downloaded() -> None:
    assert "models are never downloaded" in refusal(path="someone/some-model")


def test_code_of_a_folder_is_never_run(tmp_path: Path) -> None:
    config = {"model_type": "own", "auto_map": {"AutoConfig": "own.Config"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "own.py").write_text("raise SystemExit('the code ran')")
    assert "transformers refuses it" in refusal(path=str(tmp_path), from_scratch=True)


def test_without_transformers_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ModelError) as caught:
        task_of(config=TINY_LLAMA)
    assert "torchrelay[hf]" in caught.value.hint


def test_a_model_that_cannot_keep_documents_apart_is_refused_only_where_it_must() -> None:
    config = {"model_type": "bloom", "vocab_size": 65, "hidden_size": 32, "n_layer": 1, "n_head": 4}
    task_of(config=config).build(seed=1)
    with pytest.raises(ModelError, match="BloomForCausalLM does not keep the documents of a row apart"):
        task_of(replace(TOKENS, has_bounds=True), config=config).build(seed=1)
