"""Every kind of model trains on two processes, and what it exports is what it was, without torchrelay."""

import importlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.conftest import REPOSITORY
from tests.ranks.conftest import DEADLINE_S, Relay, assert_close
from torchrelay.data.batch import IGNORE_LABEL
from torchrelay.data.build.dataset_build import BuildRequest, build_dataset
from torchrelay.data.build.input import JsonLines
from torchrelay.data.loader import open_split
from torchrelay.recipe.load import load_recipe
from torchrelay.store.open import open_store

pytestmark = pytest.mark.ranks

LLAMA = {
    "model_type": "llama",
    "vocab_size": 257,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 16,
}
GPT2 = {"model_type": "gpt2", "vocab_size": 257, "n_positions": 16, "n_embd": 24, "n_layer": 2, "n_head": 3}
BERT = {
    "model_type": "bert",
    "vocab_size": 257,
    "hidden_size": 24,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "max_position_embeddings": 48,
}

Loss = Callable[[nn.Module, dict[str, torch.Tensor]], torch.Tensor]


def exported(relay: Relay, auto: str) -> nn.Module:
    """The final model as anybody would load it."""
    transformers = importlib.import_module("transformers")
    folder = relay.store / "final-models" / "t"
    module: nn.Module = getattr(transformers, auto).from_pretrained(folder, local_files_only=True)
    return module.eval()


def next_token_loss(module: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    scores = module(input_ids=batch["tokens"]).logits
    return nn.functional.cross_entropy(
        scores.flatten(0, 1), batch["labels"].flatten(), ignore_index=IGNORE_LABEL, reduction="sum"
    )


def class_loss(module: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    scores = module(input_ids=batch["tokens"], attention_mask=batch["attention_mask"]).logits
    return nn.functional.cross_entropy(scores, batch["labels"], reduction="sum")


def validation_loss(relay: Relay, module: nn.Module, loss: Loss) -> float:
    """Mean over the whole split, sample by sample."""
    section = load_recipe(str(relay.folder / "recipe.yaml")).data
    reader = open_split(section, open_store(section.store or str(relay.store)), "validation", seed=7)
    total, targets = 0.0, 0
    with torch.no_grad():
        for sample in range(reader.num_samples):
            batch = reader.read(np.array([sample]))
            total += float(loss(module, batch.tensors))
            targets += batch.num_targets
    return total / targets


def train(relay: Relay, engine: str, nproc: int = 2) -> list[float]:
    """The losses of its steps."""
    relay.train(f"parallel.engine={engine}", nproc=nproc)
    return relay.losses()


def test_an_image_classifier_of_one_s_own_learns_its_digits(tmp_path: Path) -> None:
    words = ["train", "examples/digits.yaml", "--nproc", "2", "--store", str(tmp_path / "store")]
    done = subprocess.run(
        [sys.executable, "-m", "torchrelay", *words],
        cwd=REPOSITORY, capture_output=True, text=True, timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    digits = importlib.import_module("examples.digits")
    safetensors = importlib.import_module("safetensors.torch")
    model = digits.classifier(hidden=64)
    model.load_state_dict(safetensors.load_file(tmp_path / "store/final-models/digits/model.safetensors"))
    assert digits.accuracy(model) > 0.95
    assert "torchrelay sample" not in done.stdout
    assert "--set train.epochs=16" in done.stdout


@pytest.mark.parametrize(("config", "engine"), [(LLAMA, "ddp"), (GPT2, "fsdp")], ids=["llama", "gpt2"])
def test_a_language_model_of_transformers_trains_and_is_loaded_by_it_again(
    relay: Relay, config: dict[str, Any], engine: str
) -> None:
    relay.write_recipe(
        model={"decoder": None, "huggingface": {"config": config}},
        train={"steps": 12},
        checkpoint={"every": 50},
    )
    losses = train(relay, engine)
    assert losses[-1] < losses[0] - 0.2
    loaded = exported(relay, "AutoModelForCausalLM")
    assert loaded.config.model_type == config["model_type"]
    last = relay.kind("validation")[-1]
    assert_close([validation_loss(relay, loaded, next_token_loss)], [last["loss"]])
    assert (relay.store / "final-models/t/torchrelay_tokenizer.json").exists()


@pytest.fixture
def reviews(tmp_path: Path) -> Path:
    """A store with 90 short texts of three classes."""
    lines = [
        json.dumps(
            {"text": " ".join(["good", "fair", "poor"][n % 3] for _ in range(2 + n % 7)), "grade": n % 3}
        )
        for n in range(90)
    ]
    (tmp_path / "reviews.jsonl").write_text("\n".join(lines))
    documents = JsonLines(patterns=[f"{tmp_path}/reviews.jsonl"], field="text", label_field="grade")
    request = BuildRequest(documents=documents, tokenizer="bytes", validation=0.3)
    build_dataset(open_store(str(tmp_path / "reviews")), "reviews", request, progress=lambda *_: None)
    return tmp_path / "reviews"


def test_a_classifier_of_transformers_learns_from_labelled_lines_with_either_engine(
    relay: Relay, reviews: Path, tmp_path: Path
) -> None:
    relay.write_recipe(
        model={"decoder": None, "huggingface": {"config": BERT, "task": "sequence-classification"}},
        data={"dataset": "reviews", "store": str(reviews), "reading": "documents", "sequence_length": 48},
        train={"steps": 12, "micro_batch": 3},
        checkpoint={"every": 50},
    )
    (relay.store / "datasets").unlink()
    other = relay.copy_to(tmp_path / "other")
    curves = [train(relay, "ddp"), train(other, "fsdp")]
    assert_close(curves[1], curves[0])
    for place in (relay, other):
        loaded = exported(place, "AutoModelForSequenceClassification")
        assert loaded.config.num_labels == 3
        last = place.kind("validation")[-1]
        assert last["targets"] == last["samples"]
        assert_close([validation_loss(place, loaded, class_loss)], [last["loss"]])


def test_whole_documents_of_uneven_length_are_one_curve_on_one_and_two_processes(
    relay: Relay, tmp_path: Path
) -> None:
    relay.write_recipe(
        data={"reading": "documents", "sequence_length": 512}, train={"steps": 8}, checkpoint={"every": 50}
    )
    other = relay.copy_to(tmp_path / "other")
    train(relay, "ddp", nproc=1)
    train(other, "ddp", nproc=2)
    for key in ("loss", "grad_norm"):
        assert_close([r[key] for r in other.steps()], [r[key] for r in relay.steps()])
    tokens = [record["tokens"] for record in relay.steps()]
    assert [record["tokens"] for record in other.steps()] == tokens
    assert len({b - a for a, b in zip(tokens, tokens[1:], strict=False)}) > 1
    assert other.sample_ids() == relay.planned_ids(steps=8)
    last = other.kind("validation")[-1]
    assert_close([last["loss"]], [relay.kind("validation")[-1]["loss"]])
    loaded = exported(other, "AutoModelForCausalLM")
    assert_close([validation_loss(other, loaded, next_token_loss)], [last["loss"]])
