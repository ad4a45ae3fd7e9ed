"""How much is needed, and what is said when there is less."""

import os
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.data.cache.support import SIZE, ToyStore, content, entry_of, fill
from torchrelay.core.errors import RecipeError
from torchrelay.data.cache.budget import check_budget, least_bytes, make_budget, measure_auto
from torchrelay.data.order.order import Order, OrderSettings
from torchrelay.data.order.outlook import SlotPattern


@given(
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=20),
    lanes=st.integers(1, 6),
    window=st.integers(1, 4),
    seed=st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_a_window_of_every_lane_fits_at_any_slot(
    sizes: list[int], lanes: int, window: int, seed: int
) -> None:
    entries = [entry_of(content(number, size), f"s{number}") for number, size in enumerate(sizes)]
    entries = [entry for number, entry in enumerate(entries) if entry not in entries[:number]]
    counts = [entry.bytes for entry in entries]
    order = Order(counts, OrderSettings(seed=seed, lanes=lanes, window_shards=window, shuffle=True))
    least = least_bytes(entries, order, 0, None)
    trace = order.trace(np.arange(2 * order.num_samples))
    held: dict[tuple[int, int, int], set[int]] = defaultdict(set)
    rows = list(zip(trace.epochs, trace.lanes, trace.windows, trace.located.shards, strict=True))
    for epoch, lane, number, shard in rows:
        held[epoch, lane, number].add(shard)
    live: dict[int, tuple[int, int, int]] = {}
    for epoch, lane, number, _ in rows:
        live[lane] = (epoch, lane, number)
        shards = set().union(*(held[one] for one in live.values()))
        assert sum(counts[shard] for shard in shards) <= least
    assert least <= sum(counts)


def test_the_figure_is_one_window_a_lane_and_a_download() -> None:
    entries = fill(ToyStore(), 100)
    order = Order([40] * 100, OrderSettings(seed=3, lanes=4, window_shards=5, shuffle=True))
    assert least_bytes(entries, order, 0, None) == 21 * SIZE
    assert least_bytes(entries, order, 0, SlotPattern(4, 0, 1)) == 6 * SIZE
    assert least_bytes(entries, order, 4000 * 7 + 5, SlotPattern(8, 0, 2)) == 11 * SIZE


def test_too_small_is_refused_with_the_figure() -> None:
    check_budget(1000, 1000, 1000)
    with pytest.raises(
        RecipeError, match=r"data\.cache\.size 999 B is too small: .*\(1,000 bytes\)"
    ) as caught:
        check_budget(999, 1000, 999)
    assert "at least 1000" in caught.value.hint
    with pytest.raises(RecipeError, match=r"may fill 999 B of the disk") as caught:
        check_budget(999, 1000, "auto")
    assert "data.cache.folder" in caught.value.hint


def test_auto_is_three_quarters_of_the_disk_that_others_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchrelay.data.cache.budget.free_bytes", lambda folder: 1000)
    assert measure_auto(tmp_path / "not" / "yet") == 750
    (tmp_path / "ab").mkdir()
    (tmp_path / "ab" / "x").write_bytes(b"x" * 400)
    assert make_budget("auto", tmp_path)() == 1050
    assert make_budget(77, tmp_path)() == 77
    assert measure_auto(Path(os.sep)) > 0
