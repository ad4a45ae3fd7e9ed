from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.checkpoint.support import ALONE
from tests.unit.train.support import NUM_TRAIN, recipe
from torchrelay.core.errors import DataError
from torchrelay.data.batch import MicroBatch
from torchrelay.data.loader import SplitReader, open_split
from torchrelay.store.open import open_store
from torchrelay.train.feed import Feed
from torchrelay.train.units import share_units, unit_seed


@pytest.fixture(scope="module")
def reader() -> SplitReader:
    section = recipe(Path("unused")).data
    return open_split(section, open_store("memory://feed"), "train", seed=7)


def feed(
    reader: SplitReader, *, rank: int = 0, size: int = 1, micro_batch: int = 2, prefetch: int = 0
) -> Feed:
    world = replace(ALONE, rank=rank, size=size)
    return Feed(
        reader=reader,
        world=world,
        share=share_units(12 // micro_batch, rank=rank, num_processes=size),
        global_batch=12,
        micro_batch=micro_batch,
        seed=7,
        prefetch=prefetch,
    )


def ids(batches: list[MicroBatch]) -> list[int]:
    return [sample for batch in batches for sample in batch.sample_ids.tolist()]


@given(
    size=st.integers(1, 6),
    micro_batch=st.sampled_from([1, 2]),
    step=st.integers(1, 400),
    prefetch=st.sampled_from([0, 2]),
)
def test_all_ranks_together_read_exactly_the_slots_of_the_step(
    reader: SplitReader, size: int, micro_batch: int, step: int, prefetch: int
) -> None:
    planned = reader.order.samples(np.arange(12 * (step - 1), 12 * step)).sample_ids.tolist()
    read = []
    for rank in range(size):
        own = feed(reader, rank=rank, size=size, micro_batch=micro_batch, prefetch=prefetch)
        stream = own.stream(step, step)
        read += ids(next(stream))
        stream.close()
    assert read == planned


@pytest.mark.parametrize("prefetch", [0, 1, 3])
@pytest.mark.parametrize("is_uniform", [True, False])
def test_a_stream_is_the_same_however_it_is_read(
    reader: SplitReader, prefetch: int, is_uniform: bool
) -> None:
    own = feed(replace(reader, is_uniform=is_uniform), rank=1, size=4, prefetch=prefetch)
    expected = [[reader.read(slots) for slots in own.slots(step)] for step in range(5, 60)]
    found = list(own.stream(5, 59))
    assert [ids(batches) for batches in found] == [ids(batches) for batches in expected]
    for batches, others in zip(found, expected, strict=True):
        for batch, other in zip(batches, others, strict=True):
            assert batch.tensors["x"].equal(other.tensors["x"])
            assert (batch.num_targets, batch.num_tokens) == (other.num_targets, other.num_tokens)


def test_what_was_read_ahead_leaves_no_trace(reader: SplitReader) -> None:
    stream = feed(reader, prefetch=4).stream(1, 100)
    first = ids(next(stream))
    stream.close()
    again = feed(reader, prefetch=4).stream(2, 2)
    assert ids(next(again)) == ids(next(feed(reader).stream(2, 2)))
    assert first == ids(next(feed(reader).stream(1, 1)))


def test_an_epoch_holds_every_sample_once_and_the_next_has_another_order(reader: SplitReader) -> None:
    steps = [ids(batches) for batches in feed(reader).stream(1, 4)]
    first, second = steps[0] + steps[1], steps[2] + steps[3]
    assert sorted(first) == sorted(second) == list(range(NUM_TRAIN))
    assert first != second


def test_units_have_their_own_seed_and_the_same_one_on_any_rank(reader: SplitReader) -> None:
    seeds = []
    for rank in range(4):
        own = feed(reader, rank=rank, size=4, micro_batch=1)
        units, _ = own.units(3, next(own.stream(3, 3)))
        assert len(units) == 3
        seeds += [unit.seed for unit in units]
    assert seeds == [unit_seed(7, 3, unit) for unit in range(12)]


def test_a_rank_with_fewer_units_gets_idle_ones_that_weigh_nothing(reader: SplitReader) -> None:
    own = feed(reader, rank=1, size=4, micro_batch=2)  # six units for four ranks: 2, 1, 2, 1
    batches = next(own.stream(1, 1))
    units, _ = own.units(1, batches)
    assert [unit.weight > 0 for unit in units] == [True, False]
    for name, tensor in batches[0].tensors.items():
        assert torch.equal(units[1].tensors[name], tensor)
        assert units[1].tensors[name] is not tensor  # the model may change what it is given


def test_the_weights_make_the_gradient_that_of_the_mean_over_all_targets(reader: SplitReader) -> None:
    own = feed(reader, rank=1, size=3, micro_batch=2)
    units, targets = own.units(1, next(own.stream(1, 1)))
    assert targets == 12
    assert {unit.weight for unit in units} == {3 / 12}


class Counting:
    """A world of two that counts the other rank's targets too."""

    rank, size = 0, 2

    def __init__(self, others: int) -> None:
        self._others = others

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        return values + self._others


def uneven(reader: SplitReader, others: int) -> Feed:
    varying = replace(reader, targets_per_sample=None)
    return replace(feed(varying, size=2), world=Counting(others))  # type: ignore[arg-type]  # all that is used


def test_uneven_targets_are_counted_over_all_ranks(reader: SplitReader) -> None:
    own = uneven(reader, others=5)
    batches = [replace(batch, num_targets=3) for batch in next(own.stream(1, 1))]
    units, targets = own.units(1, batches)
    assert targets == 3 * len(batches) + 5
    assert units[0].weight == 2 / targets


def test_a_step_without_anything_to_predict_is_an_error_and_not_a_division_by_nought(
    reader: SplitReader,
) -> None:
    own = uneven(reader, others=0)
    batches = [replace(batch, num_targets=0) for batch in next(own.stream(9, 9))]
    with pytest.raises(DataError, match="step 9 has nothing to predict: all 12 samples are empty"):
        own.units(9, batches)
