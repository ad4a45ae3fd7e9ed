from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tests.unit.checkpoint.support import ALONE
from tests.unit.train.support import NUM_VALIDATION, recipe
from torchrelay.data.loader import SplitReader, open_split
from torchrelay.store.open import open_store
from torchrelay.train.evaluate import Measured, measure


class Summing:
    """An engine whose loss of a batch is the sum of its x; counts passes, and where dropout would be on."""

    def __init__(self) -> None:
        self.module = nn.Dropout(0.5)
        self.passes = 0
        self.modes: set[bool] = set()

    def loss(self, tensors: dict[str, torch.Tensor]) -> torch.Tensor:
        self.passes += 1
        self.modes.add(self.module.training)
        return tensors["x"].sum()


class Rank:
    """One of several ranks, which gets the sums of the others from outside."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.brought = torch.zeros(2)
        self.others = torch.zeros(2, dtype=torch.float64)

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        self.brought = values.clone()
        return values + self.others


@pytest.fixture(scope="module")
def reader() -> SplitReader:
    section = recipe(Path("unused")).data
    return open_split(section, open_store("memory://evaluate"), "validation", seed=7)


def measured(reader: SplitReader, size: int, samples: int, batch: int) -> tuple[list[Measured], list[int]]:
    """What every rank of `size` measures, and how many passes each ran."""
    ranks = [Rank(rank, size) for rank in range(size)]
    engines = [Summing() for _ in ranks]
    for turn in range(2):  # first to learn what all bring, then for the result
        results = [
            measure(engine, rank, reader, samples=samples, batch=batch)  # type: ignore[arg-type]  # stand-ins
            for engine, rank in zip(engines, ranks, strict=True)
        ]
        for rank in ranks:
            rank.others = sum(other.brought for other in ranks if other is not rank) + torch.zeros(2)
        if turn == 0:
            for engine in engines:
                engine.passes = 0
    return results, [engine.passes for engine in engines]


@given(size=st.integers(1, 5), samples=st.integers(1, NUM_VALIDATION), batch=st.integers(1, 12))
def test_every_sample_counts_once_whatever_the_world_and_every_rank_runs_equally_often(
    reader: SplitReader, size: int, samples: int, batch: int
) -> None:
    results, passes = measured(reader, size, samples, batch)
    for result in results:
        assert (result.samples, result.targets) == (samples, samples)
        assert result.loss == pytest.approx(sum(range(100, 100 + samples)) / samples)
    assert len(set(passes)) == 1


def test_the_module_is_in_evaluation_and_back_in_training_afterwards(reader: SplitReader) -> None:
    engine = Summing()
    measure(engine, ALONE, reader, samples=4, batch=2)  # type: ignore[arg-type]  # a stand-in
    assert engine.modes == {False}
    assert engine.module.training


def test_a_split_of_only_empty_documents_has_loss_nought_and_no_division_by_it(reader: SplitReader) -> None:
    class Empty:
        def read(self, slots):
            return replace(reader.read(slots), num_targets=0)

    class Nothing(Summing):
        def loss(self, tensors: dict[str, torch.Tensor]) -> torch.Tensor:
            return torch.zeros(())

    result = measure(Nothing(), ALONE, Empty(), samples=4, batch=2)  # type: ignore[arg-type]  # stand-ins
    assert (result.loss, result.targets) == (0.0, 0)
