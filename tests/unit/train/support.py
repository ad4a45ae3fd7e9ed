"""A run small enough for a unit test: a line is fitted to numbers, in this process, in milliseconds."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from tests.unit.checkpoint.support import ALONE
from torchrelay.core.record import Record
from torchrelay.data.source import Arrays
from torchrelay.observe.journal import open_journal
from torchrelay.observe.tee import Tee
from torchrelay.recipe.schema import Recipe
from torchrelay.train.keep import Keeper
from torchrelay.train.loop import Course
from torchrelay.train.session import Session, open_session
from torchrelay.train.signal import StopFlag

NUM_TRAIN = 24
NUM_VALIDATION = 10


class Line(nn.Module):
    """Squared error of a·x + b; NaN for the sample whose x is `bad`; noisy if so wished."""

    def __init__(self, bad: float | None, noise: bool) -> None:
        super().__init__()
        self.slope = nn.Linear(1, 1)
        self.bad = bad
        self.noise = noise

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        x = batch["x"]
        if self.noise and self.training:
            x = x + random.random() + np.random.rand() + torch.rand(1)
        losses: torch.Tensor = (self.slope(x) - 2 * x - 1).square().squeeze(1)
        return losses if self.bad is None else losses.masked_fill(x.squeeze(1) == self.bad, float("nan"))


def model(bad: float | None = None, noise: bool = False) -> nn.Module:
    return Line(bad, noise)


def numbers(split: str, version: str = "1", count: int = NUM_TRAIN) -> Arrays:
    """x of sample i is i; of validation, i + 100."""
    first, count = (0, count) if split == "train" else (100, NUM_VALIDATION)
    return Arrays({"x": np.arange(first, first + count, dtype=np.float32)[:, None]}, version=version)


def only_training(split: str) -> Arrays:
    return Arrays({"x": np.zeros((NUM_TRAIN if split == "train" else 0, 1), dtype=np.float32)})


def recipe(folder: Path, **sections: dict[str, Any]) -> Recipe:
    """The recipe of such a run; keyword arguments lay sections over it."""
    tree: dict[str, Any] = {
        "run": {"name": "t", "store": str(folder), "seed": 7},
        "model": {"python": f"{__name__}:model"},
        "data": {"source": f"{__name__}:numbers"},
        "train": {
            "steps": 6,
            "global_batch": 4,
            "micro_batch": 2,
            "optimizer": {"lr": 0.001, "weight_decay": 0.0},
            "schedule": {"kind": "constant"},
        },
        "checkpoint": {"every": 2},
    }
    for section, values in sections.items():
        tree[section] = {**tree.get(section, {}), **values}
    return Recipe.model_validate(tree)


class Heard:
    """A sink that keeps everything, and may act on a record."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.flushed_at: list[int] = []

    def write(self, record: Record) -> None:
        self.records.append(record)

    def flush(self) -> None:
        self.flushed_at.append(len(self.records))

    def close(self) -> None:
        pass

    def kind(self, kind: str) -> list[Any]:
        return [record for record in self.records if record.kind == kind]


def open_course(wanted: Recipe, *, fresh: bool = False) -> tuple[Session, Course, Heard]:
    """An attempt, ready for `train`."""
    session = open_session(wanted, ALONE, fresh=fresh)
    heard = Heard()
    sink = Tee([heard, open_journal(session.store, session.run.run, session.attempt)])
    course = Course(
        session=session,
        keeper=Keeper(session=session, sink=sink),
        follower=session.read_on(0),
        sink=sink,
        samples=Heard(),
        stop=StopFlag(),
        saved_s=0.0,
        validated_s=0.0,
    )
    return session, course, heard


def losses(records: Sequence[Any]) -> list[float]:
    return [record.loss for record in records]
