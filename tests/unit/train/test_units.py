import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchrelay.core.errors import RecipeError
from torchrelay.data.readings.rows import padded_length
from torchrelay.train.units import (
    Grouping,
    choose_micro_batch,
    deal_units,
    group_by_length,
    largest_divisor,
    share_units,
    unit_seed,
)

sizes = st.integers(1, 200)


@given(num_units=st.integers(1, 500), num_processes=st.integers(1, 64))
def test_every_unit_is_run_once_by_neighbours_and_fairly(num_units: int, num_processes: int) -> None:
    shares = [share_units(num_units, rank=rank, num_processes=num_processes) for rank in range(num_processes)]
    covered = [unit for share in shares for unit in range(share.first, share.first + share.count)]
    assert covered == list(range(num_units))
    counts = [share.count for share in shares]
    assert max(counts) - min(counts) <= 1
    assert {share.rounds for share in shares} == {max(counts)}
    if num_units >= num_processes:
        assert min(counts) >= 1


@given(global_batch=sizes, num_processes=st.integers(1, 64), settled=st.none() | sizes)
def test_auto_gives_every_process_a_unit_and_divides_the_batch(
    global_batch: int, num_processes: int, settled: int | None
) -> None:
    if settled is not None:
        settled = largest_divisor(global_batch, min(settled, global_batch))
    if global_batch < num_processes:
        with pytest.raises(RecipeError, match="smaller than the number of processes"):
            choose_micro_batch(
                "auto", global_batch=global_batch, num_processes=num_processes, settled=settled
            )
        return
    chosen = choose_micro_batch(
        "auto", global_batch=global_batch, num_processes=num_processes, settled=settled
    )
    assert global_batch % chosen == 0
    assert global_batch // chosen >= num_processes
    if settled is not None:
        assert settled % chosen == 0
        if global_batch // settled >= num_processes:
            assert chosen == settled
        else:
            larger = [n for n in range(chosen + 1, settled + 1) if settled % n == 0]
            assert all(global_batch // n < num_processes for n in larger)
    else:
        larger = [n for n in range(chosen + 1, global_batch + 1) if global_batch % n == 0]
        assert all(global_batch // n < num_processes for n in larger)


@given(global_batch=sizes, num_processes=st.integers(1, 16), data=st.data())
def test_a_number_is_taken_as_it_is_or_refused_with_one_that_works(
    global_batch: int, num_processes: int, data: st.DataObject
) -> None:
    divisors = [n for n in range(1, global_batch + 1) if global_batch % n == 0]
    wanted = data.draw(st.sampled_from(divisors))
    if global_batch < num_processes:
        return
    if global_batch // wanted >= num_processes:
        found = choose_micro_batch(wanted, global_batch=global_batch, num_processes=num_processes, settled=1)
        assert found == wanted
        return
    with pytest.raises(RecipeError, match="too few for") as caught:
        choose_micro_batch(wanted, global_batch=global_batch, num_processes=num_processes, settled=None)
    fitting = int(caught.value.hint.split()[3])
    assert global_batch % fitting == 0
    assert global_batch // fitting >= num_processes


def test_the_refusal_shows_the_arithmetic() -> None:
    with pytest.raises(RecipeError) as caught:
        choose_micro_batch(6, global_batch=12, num_processes=4, settled=None)
    assert caught.value.message == (
        "train.global_batch 12 ÷ train.micro_batch 6 = 2 micro-batches, too few for 4 processes"
    )
    assert caught.value.hint == "set train.micro_batch to 3 or less"


@given(number=sizes, limit=sizes)
def test_the_largest_divisor_is_one_and_the_largest(number: int, limit: int) -> None:
    found = largest_divisor(number, limit)
    assert number % found == 0
    assert found <= limit
    assert all(number % n for n in range(found + 1, min(limit, number) + 1))


@given(st.integers(0, 2**63 - 1), st.integers(1, 2**40), st.integers(0, 2**20))
def test_seeds_of_units_fit_torch(seed: int, step: int, unit: int) -> None:
    assert 0 <= unit_seed(seed, step, unit) < 2**63


def test_seeds_differ_from_unit_to_unit_step_to_step_and_run_to_run() -> None:
    seeds = {unit_seed(seed, step, unit) for seed in range(5) for step in range(40) for unit in range(40)}
    assert len(seeds) == 5 * 40 * 40


lengths = st.lists(st.integers(0, 100), min_size=1, max_size=60)
budgets = st.integers(100, 900)


def grouped(lengths: list[int], grouping: Grouping) -> list[list[int]]:
    return [unit.tolist() for unit in group_by_length(np.array(lengths, np.int64), grouping)]


@given(lengths=lengths, rows=st.integers(1, 20), positions=st.none() | budgets)
def test_every_sample_is_in_one_unit_and_units_are_of_like_length(
    lengths: list[int], rows: int, positions: int | None
) -> None:
    units = grouped(lengths, Grouping(rows, positions, 100))
    assert sorted(place for unit in units for place in unit) == list(range(len(lengths)))
    assert all(unit == sorted(unit) for unit in units)
    for unit, following in zip(units, units[1:], strict=False):
        assert min(lengths[place] for place in unit) >= max(lengths[place] for place in following)


@given(lengths=lengths, rows=st.integers(1, 20))
def test_units_have_equally_many_samples_but_the_last(lengths: list[int], rows: int) -> None:
    units = grouped(lengths, Grouping(rows, None, 100))
    assert all(len(unit) == rows for unit in units[:-1])
    assert len(units[-1]) <= rows


@given(lengths=lengths, positions=budgets)
def test_a_budget_is_kept_and_used(lengths: list[int], positions: int) -> None:
    units = grouped(lengths, Grouping(1, positions, 100))
    rows = [padded_length(max(lengths[place] for place in unit), 100) for unit in units]
    for unit, row in zip(units, rows, strict=True):
        assert len(unit) * row <= positions
    for unit, row in zip(units[:-1], rows[:-1], strict=True):
        assert (len(unit) + 1) * row > positions


@given(num_units=st.integers(1, 100), num_processes=st.integers(1, 16))
def test_units_are_dealt_so_that_the_work_is_even_and_rank_0_is_never_idle(
    num_units: int, num_processes: int
) -> None:
    dealt = [deal_units(num_units, rank=r, num_processes=num_processes) for r in range(num_processes)]
    assert sorted(unit for own in dealt for unit in own) == list(range(num_units))
    assert len(dealt[0]) == -(-num_units // num_processes) == max(map(len, dealt))
    work = list(range(num_units, 0, -1))  # the first is the longest
    sums = [sum(work[unit] for unit in own) for own in dealt if len(own) == len(dealt[0])]
    assert max(sums) - min(sums) <= num_units
