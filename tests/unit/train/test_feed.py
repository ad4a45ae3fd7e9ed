from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.checkpoint.support import ALONE
from tests.unit.data.readings.support import Tokens, document, located, section
from tests.unit.train.support import NUM_TRAIN, recipe
from torchrelay.core.errors import DataError
from torchrelay.data.batch import MicroBatch, make_batch
from torchrelay.data.loader import SplitReader, open_split
from torchrelay.data.reading import open_reading
from torchrelay.recipe.data_schema import DataSection
from torchrelay.store.open import open_store
from torchrelay.train.feed import Feed
from torchrelay.train.units import share_units, unit_seed

GLOBAL_BATCH = 12


@pytest.fixture(scope="module")
def reader() -> SplitReader:
    data = recipe(Path("unused")).data
    return open_split(data, open_store("memory://feed"), "train", seed=7, global_batch=GLOBAL_BATCH)


def feed(reader: SplitReader, *, rank: int = 0, size: int = 1, micro_batch: int = 2, **data: Any) -> Feed:
    world = replace(ALONE, rank=rank, size=size)
    return Feed(
        reader=reader,
        world=world,
        share=share_units(GLOBAL_BATCH // micro_batch, rank=rank, num_processes=size),
        global_batch=GLOBAL_BATCH,
        micro_batch=micro_batch,
        seed=7,
        section=section(**data),
    )


def ids(batches: list[MicroBatch]) -> list[int]:
    return [sample for batch in batches for sample in batch.sample_ids.tolist()]


def planned(reader: SplitReader, step: int) -> list[int]:
    slots = np.arange(GLOBAL_BATCH * (step - 1), GLOBAL_BATCH * step)
    found: list[int] = reader.locate(slots).located.sample_ids.tolist()
    return found


@settings(deadline=None)
@given(
    size=st.integers(1, 6),
    micro_batch=st.sampled_from([1, 2]),
    step=st.integers(1, 400),
    prefetch=st.sampled_from([0, 2]),
)
def test_all_ranks_together_read_exactly_the_slots_of_the_step(
    reader: SplitReader, size: int, micro_batch: int, step: int, prefetch: int
) -> None:
    read = []
    for rank in range(size):
        own = feed(reader, rank=rank, size=size, micro_batch=micro_batch, prefetch=prefetch)
        stream = own.stream(step, step)
        read += ids(next(stream))
        stream.close()
    assert read == planned(reader, step)


@pytest.mark.parametrize("prefetch", [0, 1, 3])
@pytest.mark.parametrize("is_uniform", [True, False])
def test_a_stream_is_the_same_however_it_is_read(
    reader: SplitReader, prefetch: int, is_uniform: bool
) -> None:
    own = feed(replace(reader, is_uniform=is_uniform), rank=1, size=4, prefetch=prefetch)
    demand_same(own, list(own.stream(5, 59)), range(5, 60))


def demand_same(own: Feed, found: list[list[MicroBatch]], steps: range) -> None:
    expected = [[own.reader.read(slots) for slots in own.plan(step).slots] for step in steps]
    assert [ids(batches) for batches in found] == [ids(batches) for batches in expected]
    for batches, others in zip(found, expected, strict=True):
        for batch, other in zip(batches, others, strict=True):
            assert all(batch.tensors[name].equal(other.tensors[name]) for name in other.tensors)
            assert (batch.num_targets, batch.num_tokens) == (other.num_targets, other.num_tokens)


def test_workers_need_a_store_that_they_can_open(reader: SplitReader) -> None:
    own = feed(replace(reader, spec=None), workers=2)
    with pytest.raises(DataError, match="other processes cannot open a memory:// store"):
        next(own.stream(1, 2))


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


def test_a_batch_without_samples_weighs_nothing(reader: SplitReader) -> None:
    own = feed(reader)
    batches = next(own.stream(1, 1))
    batches[2] = replace(batches[2], num_targets=0)
    assert [unit.weight > 0 for unit in own.units(1, batches)[0]] == [True, True, False, True, True, True]


def test_the_weights_make_the_gradient_that_of_the_mean_over_all_targets(reader: SplitReader) -> None:
    own = feed(reader, rank=1, size=3, micro_batch=2)
    units, targets = own.units(1, next(own.stream(1, 1)))
    assert targets == 12
    assert {unit.weight for unit in units} == {3 / 12}


class Counting:
    """A world of several that counts the other ranks' targets too."""

    rank = 0

    def __init__(self, others: int, size: int = 2) -> None:
        self._others = others
        self.size = size

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


class Shuffled:
    """Stands for a reader of documents: turn t is document 7·t mod their number."""

    targets_per_sample = None
    is_uniform = False
    spec = None

    def __init__(self, wanted: DataSection) -> None:
        self.tokens = Tokens([[document(n, 5 * n % 31) for n in range(50)]])
        self._reading = open_reading(wanted, self.tokens.content, self.tokens.shards(), 1, training=True)

    def _locate(self, slots: Any) -> Any:
        return located(*[(0, 7 * slot % 50) for slot in slots.tolist()])

    def read(self, slots: Any) -> MicroBatch:
        where = self._locate(slots)
        return make_batch(self._reading.read(where, slots * 0), where.sample_ids)

    def lengths(self, slots: Any) -> Any:
        return self._reading.lengths(self._locate(slots))


def document_feed(rank: int, size: int, **data: Any) -> Feed:
    wanted = section(reading="documents", sequence_length=40, pad="longest", **data)
    reader: Any = Shuffled(wanted)
    own = feed(reader, rank=rank, size=size, micro_batch=3)
    return replace(own, section=wanted)


@settings(deadline=None, max_examples=40)
@given(
    size=st.integers(1, 8),
    budget=st.none() | st.integers(40, 300),
    prefetch=st.sampled_from([0, 2]),
    step=st.integers(1, 100),
)
def test_documents_of_like_length_are_put_together_the_same_way_by_any_number_of_ranks(
    size: int, budget: int | None, prefetch: int, step: int
) -> None:
    alone = document_feed(0, 1, batch_tokens=budget)
    whole = next(alone.stream(step, step))
    seeds = [unit.seed for unit in unit_list(alone, step, whole)]
    counting, rounds, found = 0, set(), {}
    for rank in range(size):
        own = document_feed(rank, size, batch_tokens=budget, prefetch=prefetch)
        stream = own.stream(step, step)
        batches = next(stream)
        stream.close()
        counting += sum(batch.num_targets for batch in batches)
        units = unit_list(own, step, batches)
        rounds.add(len(units))
        for batch, unit in zip(batches, units, strict=False):
            assert (unit.weight > 0) == (batch.num_targets > 0)
            if len(batch.sample_ids):
                found[unit.seed] = (ids([batch]), batch.tensors["tokens"].tolist())
    assert len(rounds) == 1
    assert counting == sum(batch.num_targets for batch in whole)
    assert sorted(ids(whole)) == sorted(7 * slot % 50 for slot in range(12 * step - 12, 12 * step))
    assert found == {
        seed: (ids([batch]), batch.tensors["tokens"].tolist())
        for seed, batch in zip(seeds, whole, strict=True)
    }
    for batch in whole:
        assert len(batch.sample_ids) <= 3 if budget is None else batch.tensors["tokens"].numel() <= budget


def unit_list(own: Feed, step: int, batches: list[MicroBatch]) -> Any:
    world: Any = Counting(100, own.world.size)
    world.rank = own.world.rank
    return replace(own, world=world).units(step, batches)[0]


def test_planning_by_length_reads_no_tokens_of_other_ranks() -> None:
    own = document_feed(1, 4)
    reader: Any = own.reader
    own.plan(3)
    assert (reader.tokens.source.opened, reader.tokens.source.tails) == ([], ["shards/0.tok"])


def test_plans_are_forgotten_when_their_step_runs() -> None:
    own = document_feed(0, 1, prefetch=2)
    stream = own.stream(1, 20)
    for step, batches in enumerate(stream, start=1):
        unit_list(own, step, batches)
        assert len(own.plans) <= 4
    assert own.plans == {}
