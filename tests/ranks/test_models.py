"""Models that are easy to get wrong on several processes: unused parameters, running statistics, and more."""

import json
from typing import Any

import pytest
import yaml

from tests.ranks.conftest import RECIPE, Relay

pytestmark = pytest.mark.ranks

CODE = """
import numpy as np
import torch
from torch import nn
from torchrelay.data.source import Arrays


class Net(nn.Module):
    def __init__(self, unused, norm):
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.norm = nn.BatchNorm1d(8) if norm else nn.Identity()
        self.last = nn.Linear(8, 1)
        if unused:
            self.never = nn.Linear(4, 4)

    def forward(self, batch):
        x = batch.pop("x")          # a model may do what it likes with the batch it is given
        x.mul_(0.5)
        return (self.last(self.norm(self.first(x)).relu()) - batch["y"]).square().squeeze(1)


def net(unused=False, norm=False):
    return Net(unused, norm)


def data(split):
    random = np.random.default_rng(3)
    x = random.standard_normal((96, 4)).astype(np.float32)
    return Arrays({"x": x, "y": x[:, :1] * 2 + 1})


class Counting(torch.optim.Optimizer):
    "Keeps its step as a number, as many do, and uses it."

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self.state[p]["step"] = self.state[p].get("step", 0) + 1
                    p.sub_(p.grad, alpha=group["lr"] / self.state[p]["step"])
"""


def _prepare(relay: Relay, options: dict[str, Any], optimizer: dict[str, Any] | None = None) -> None:
    (relay.folder / "own.py").write_text(CODE)
    recipe = {
        **RECIPE,
        "model": {"python": "own:net", "options": options},
        "data": {"source": "own:data"},
        "train": {
            "steps": 8,
            "global_batch": 12,
            "micro_batch": 3,
            "optimizer": optimizer or {"lr": 0.01},
            "schedule": {"kind": "constant"},
        },
        "checkpoint": {"every": 4},
    }
    (relay.folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))


@pytest.mark.parametrize("engine", ["ddp", "fsdp"])
def test_a_parameter_that_the_loss_does_not_reach_is_no_hindrance(relay: Relay, engine: str) -> None:
    _prepare(relay, {"unused": True})
    relay.train("run.name=one", nproc=1)
    relay.train(f"parallel.engine={engine}", nproc=3)
    assert relay.losses() == pytest.approx(relay.losses("one"), rel=1e-5)


@pytest.mark.parametrize("engine", ["ddp", "fsdp"])
def test_running_statistics_are_saved_and_resumed_alike(relay: Relay, engine: str) -> None:
    _prepare(relay, {"norm": True})
    relay.train("run.name=whole", f"parallel.engine={engine}", nproc=2)
    relay.train("train.steps=4", f"parallel.engine={engine}", nproc=2)
    relay.train(f"parallel.engine={engine}", nproc=2)
    assert relay.losses() == relay.losses("whole")
    for key in ("weights_sha256", "optimizer_sha256"):
        assert relay.checkpoint()[key] == relay.checkpoint("whole")[key]


def test_an_optimizer_that_counts_in_plain_numbers_is_resumed(relay: Relay) -> None:
    _prepare(relay, {}, {"name": "own:Counting", "lr": 0.1})
    relay.train("run.name=whole")
    relay.train("train.steps=4")
    relay.train()
    assert relay.losses() == relay.losses("whole")
    assert relay.checkpoint()["weights_sha256"] == relay.checkpoint("whole")["weights_sha256"]


def test_a_model_with_nothing_to_train_is_refused_on_every_engine(relay: Relay) -> None:
    (relay.folder / "frozen.py").write_text(
        "from own import *\n\ndef frozen():\n    return Net(False, False).requires_grad_(False)\n"
    )
    _prepare(relay, {})
    recipe = yaml.safe_load((relay.folder / "recipe.yaml").read_text())
    recipe["model"] = {"python": "frozen:frozen"}
    (relay.folder / "recipe.yaml").write_text(json.dumps(recipe))
    said = relay.train("parallel.engine=ddp", nproc=2, code=78)
    assert "no parameter to train" in said.stderr
    assert not list(relay.store.glob("runs/*/run.json"))
