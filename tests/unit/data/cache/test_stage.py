"""`staging: full`: all is here before the first step, or it is refused."""

from pathlib import Path

import pytest

from tests.unit.data.cache.support import SIZE, ToyStore, fill, open_cache, shard_files
from torchrelay.core.errors import DataError, RecipeError
from torchrelay.data.cache.agenda import Route
from torchrelay.data.cache.stage import check_fits, choose_staged, stage
from torchrelay.data.order.order import Order, OrderSettings
from torchrelay.data.order.outlook import SlotPattern


def make_order() -> Order:
    return Order([40] * 20, OrderSettings(seed=3, lanes=4, window_shards=5, shuffle=True))


def test_all_shards_come_and_progress_is_told(tmp_path: Path) -> None:
    store = ToyStore()
    entries = fill(store, 20)
    told: list[tuple[int, int]] = []
    stage(open_cache(store, tmp_path, 20 * SIZE), entries, 3, lambda *seen: told.append(seen))
    assert len(shard_files(tmp_path)) == 20 and store.gets.total() == 20
    assert told == [(SIZE * number, 20 * SIZE) for number in range(1, 21)]


def test_a_damaged_shard_stops_it(tmp_path: Path) -> None:
    store = ToyStore()
    entries = fill(store, 20)
    store.answer = lambda key, data: data[1:] if key == "s3" else data
    with pytest.raises(DataError, match="s3"):
        stage(open_cache(store, tmp_path, 20 * SIZE), entries, 3, lambda done, total: None)


def test_too_little_room_is_refused_with_the_figure() -> None:
    entries = fill(ToyStore(), 20)
    check_fits(entries, 20 * SIZE)
    with pytest.raises(RecipeError, match=r"needs .* \(20,000 bytes\)") as caught:
        check_fits(entries, 20 * SIZE - 1)
    assert "data.cache.size to at least 20000" in caught.value.hint


def test_a_disk_that_refuses_is_an_error_here(tmp_path: Path) -> None:
    store = ToyStore()
    (tmp_path / "c").write_text("a file")
    with pytest.raises(RecipeError, match="cannot fill the cache"):
        stage(open_cache(store, tmp_path / "c", 20 * SIZE), fill(store, 2), 2, lambda done, total: None)


def test_only_what_the_process_reads_is_staged() -> None:
    entries, order = fill(ToyStore(), 20), make_order()
    half = Route(order, SlotPattern(4, 0, 2), 0)
    assert len(choose_staged(entries, half, None)) == 20
    assert 10 <= len(choose_staged(entries, half, order.num_samples)) <= 12
    assert len(choose_staged(entries, half, 40)) < 12
    assert choose_staged([entries[0]] * 20, half, None) == [entries[0]]
