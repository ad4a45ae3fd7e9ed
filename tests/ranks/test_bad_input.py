"""Bad input gets an error with its place and a hint, the right exit code, and leaves nothing half-made."""

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.ranks.conftest import Relay

pytestmark = pytest.mark.ranks

IN_THE_LAUNCHER = {
    "a misspelt key": (
        ["train.global_bacth=8"],
        1,
        "train.global_bacth: unknown key; did you mean 'global_batch'",
    ),
    "a wrong type": (["train.steps=many"], 1, "train.steps: "),
    "a value out of range": (["train.clip_norm=-1"], 1, "train.clip_norm: "),
    "a batch that does not divide": (
        ["train.micro_batch=5"],
        1,
        "train.micro_batch: 5 does not divide train.global_batch 12 (use one of 1, 2, 3, 4, 6, 12)",
    ),
    "heads that do not divide": (
        ["model.decoder.heads=5"],
        1,
        "model.decoder.heads: 5 does not divide model.decoder.width 24",
    ),
    "a layout of another size": (
        ["parallel.shard=2", "parallel.replicate=2"],
        3,
        "parallel.replicate 2 × parallel.shard 2 = 4, but there are 3 processes",
    ),
    "shards without fsdp": (["parallel.engine=ddp", "parallel.shard=2"], 2, "engine ddp does not shard"),
    "a missing dataset": (["data.dataset=wrds"], 1, "there is no dataset 'wrds'"),
    "a dataset version that is not there": (["data.dataset=words@9"], 1, "dataset 'words' has no ref 9"),
}

IN_THE_RANKS = {
    "more processes than samples": (
        ["train.global_batch=1"],
        2,
        "train.global_batch 1 is smaller than the number of processes 2",
    ),
    "too few micro-batches": (["train.micro_batch=12"], 2, "too few for 2 processes"),
    "a sequence longer than the data": (
        ["data.sequence_length=100000"],
        1,
        "data.sequence_length 100,000 needs",
    ),
}


def nothing_written(relay: Relay) -> bool:
    """Neither a run nor a final model; logs of the ranks may be there."""
    left = {path.relative_to(relay.store).parts[0] for path in relay.store.glob("*/**/*") if path.is_file()}
    runs = [path for path in relay.store.glob("runs/**/*") if path.is_file() and "logs" not in path.parts]
    return left <= {"datasets", "runs"} and runs == []


@pytest.mark.parametrize("case", IN_THE_LAUNCHER)
def test_it_is_found_before_any_rank_is_started(relay: Relay, case: str) -> None:
    settings, nproc, message = IN_THE_LAUNCHER[case]
    failed = relay.train(*settings, nproc=nproc, code=78)
    assert message in failed.stderr
    assert "hint: " in failed.stderr
    assert nothing_written(relay)
    assert not (relay.store / "runs").exists()


@pytest.mark.parametrize("case", IN_THE_RANKS)
def test_it_is_found_before_the_run_is_entered(relay: Relay, case: str) -> None:
    settings, nproc, message = IN_THE_RANKS[case]
    failed = relay.train(*settings, nproc=nproc, code=78)
    assert message in failed.stderr
    assert "hint: " in failed.stderr
    assert "Traceback" not in failed.stderr
    assert nothing_written(relay)


def test_all_problems_are_told_at_once_with_their_lines(relay: Relay) -> None:
    relay.write_recipe(
        train={"steps": "many", "global_bacth": 12}, model={"decoder": {"width": 24, "heads": 5}}
    )
    failed = relay.train(code=78)
    text = (relay.folder / "recipe.yaml").read_text().splitlines()
    for key in ("steps: many", "global_bacth: 12", "decoder:"):
        line = next(number for number, row in enumerate(text, start=1) if key in row)
        assert f"recipe.yaml:{line}: " in failed.stderr


def test_a_missing_dataset_is_named_with_the_nearest_one(relay: Relay) -> None:
    failed = relay.train("data.dataset=wodrs", code=78)
    assert f"there is no dataset 'wodrs' in file://{relay.store}; did you mean 'words'?" in failed.stderr
    assert "hint: datasets there: other, words; torchrelay data build NAME" in failed.stderr


def test_a_shard_with_a_flipped_byte_is_named(relay: Relay, words_store: Path, tmp_path: Path) -> None:
    (relay.store / "datasets").unlink()
    subprocess.run(["cp", "-r", words_store / "datasets", relay.store / "datasets"], check=True)
    shards = sorted(relay.store.glob("datasets/words/shards/*/*.tok"))
    for shard in shards:
        content = bytearray(shard.read_bytes())
        content[len(content) // 3] ^= 4
        shard.write_bytes(content)
    failed = relay.train(code=78)
    named = failed.stderr.split("shard shards/")[1].split(" ")[0]
    assert (relay.store / "datasets/words/shards" / named) in shards
    assert "is damaged: its xxh3_128 is" in failed.stderr
    assert "hint: torchrelay data verify lists all that is damaged" in failed.stderr
    assert relay.kind("step") == []


def test_a_store_that_cannot_be_reached_is_found_fast(relay: Relay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    began_s = time.monotonic()
    failed = relay.run("train", "recipe.yaml", "--store", "s3://bucket/place", code=78)
    assert time.monotonic() - began_s < 25
    assert "s3://bucket/place/runs/" in failed.stderr
    assert "cannot be reached" in failed.stderr
    assert "hint: check AWS_ENDPOINT_URL and AWS_REGION" in failed.stderr


@pytest.mark.parametrize("file", ["store", "store/runs"])
def test_a_place_that_cannot_be_written_is_found_at_the_start(relay: Relay, file: str) -> None:
    place = relay.folder / "other" / file
    place.parent.mkdir(parents=True)
    place.write_text("a plain file")
    failed = relay.run("train", "recipe.yaml", "--store", str(relay.folder / "other/store"), code=78)
    assert f"cannot write {relay.folder}/other/store/runs" in failed.stderr
    assert "hint: choose another place with run.store or --store" in failed.stderr
    assert place.read_text() == "a plain file"


def test_an_empty_corpus_and_text_that_is_not_utf_8_make_no_dataset(relay: Relay) -> None:
    build = ("data", "build", "new", "--store", str(relay.folder / "fresh"), "--validation", "50%")
    (relay.folder / "empty.txt").write_text("")
    (relay.folder / "latin.txt").write_bytes(b"caf\xe9 " * 40)
    failed = relay.run(*build, "--text", "empty.txt", code=78)
    assert "the corpus is empty" in failed.stderr
    assert "hint: check the files" in failed.stderr
    failed = relay.run(*build, "--text", "latin.txt", "--split", "tail", "--tokenizer", "chars", code=78)
    assert "latin.txt is not valid UTF-8 at byte 3" in failed.stderr
    assert "hint: convert the file, or use --tokenizer bytes" in failed.stderr
    assert [path for path in (relay.folder / "fresh").rglob("*") if path.is_file()] == []
    relay.run(*build, "--text", "latin.txt", "--split", "tail")


PYTHON = """
import numpy as np
import torch
from torch import nn
from torchrelay.data.source import Arrays

class Silent(nn.Linear):
    def forward(self, batch):
        super().forward(batch["x"])

class Sick(nn.Linear):
    def forward(self, batch):
        losses = super().forward(batch["x"]).square().squeeze(1)
        return losses.masked_fill((batch["x"] == 30).squeeze(1) & self.training, float("nan"))

def silent():
    return Silent(1, 1)

def sick():
    return Sick(1, 1)

def numbers(split):
    return Arrays({"x": np.arange(200, dtype=np.float32)[:, None]})
"""


@pytest.fixture
def own_model(relay: Relay) -> Callable[[str], Relay]:
    def choose(name: str) -> Relay:
        (relay.folder / "own.py").write_text(PYTHON)
        relay.write_recipe(
            model={"decoder": None, "python": f"own:{name}"},
            data={"dataset": None, "sequence_length": None, "source": "own:numbers"},
            train={"micro_batch": 6},
            checkpoint={"every": 1, "keep_last": 2},
        )
        return relay

    return choose


def test_a_model_that_returns_no_loss_is_told_what_to_return(own_model: Callable[[str], Relay]) -> None:
    failed = own_model("silent").train(code=78)
    assert "the module of own:silent returned None" in failed.stderr
    assert "hint: forward(tensors) must return the loss of every sample" in failed.stderr
    assert "Traceback" not in failed.stderr


def test_a_loss_that_is_no_number_names_step_and_samples_and_spoils_no_weights(
    own_model: Callable[[str], Relay],
) -> None:
    relay = own_model("sick")
    failed = relay.train(nproc=2, code=93)
    reached = relay.kind("step")[-1]["step"]
    step = reached + 1
    assert f"failed first: step {step}: loss nan" in failed.stderr
    assert "the update was not applied" in failed.stderr
    assert "hint: look at these samples" in failed.stderr
    named = failed.stderr.split("Samples: ")[1].splitlines()[0].split(", ")
    # Those of the one rank that read sample 30: half of the step's.
    assert "30" in named
    assert len(named) == 6
    assert relay.newest()[0] == reached
    relay.run("checkpoint", "verify", "t", "--store", str(relay.store))
    # Started again it fails at the same place: the data is the same, and so are the weights.
    again = relay.train(nproc=1, code=93)
    assert f"failed first: step {step}: loss nan" in again.stderr
    assert relay.newest()[0] == reached


def test_a_missing_recipe_is_named_with_how_to_make_one(relay: Relay) -> None:
    failed = relay.run("train", "nowhere.yaml", code=78)
    assert "there is no recipe at nowhere.yaml" in failed.stderr
    assert "hint: make one with: torchrelay init" in failed.stderr
