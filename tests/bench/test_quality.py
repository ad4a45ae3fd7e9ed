"""What the benchmarks compute themselves: figures of a shuffle, and the account of an epoch."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from torchrelay.data.order.order import Order, OrderSettings

LOADERS = Path(__file__).parents[2] / "bench" / "loaders"
COUNTS = np.full(120, 25)
CLASSES, BATCH = 40, 60


@pytest.fixture
def quality(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return load(monkeypatch, "quality")


def load(monkeypatch: pytest.MonkeyPatch, name: str) -> ModuleType:
    monkeypatch.setattr(sys, "path", [str(LOADERS), *sys.path])
    return importlib.import_module(name)


def test_a_full_permutation_is_perfect_and_stored_order_is_not(quality: ModuleType) -> None:
    full = np.random.default_rng(0).permutation(COUNTS.sum())
    good, bad = (quality.measure(o, COUNTS, CLASSES, BATCH) for o in (full, np.sort(full)))
    assert good.dispersion == pytest.approx(1, abs=0.15)
    assert good.apart == pytest.approx(0.293, abs=0.03)
    assert good.held == len(COUNTS)
    assert bad.dispersion > 20 * good.dispersion
    assert (bad.kept, bad.held, bad.apart) == (1, 1, 1 / COUNTS.sum())


def test_the_order_keeps_to_the_bound(quality: ModuleType) -> None:
    for lanes, window in ((4, 5), (8, 5), (1, 10)):
        settings = OrderSettings(seed=3, lanes=lanes, window_shards=window, shuffle=True)
        order = Order(COUNTS, settings)
        epochs = np.arange(20 * order.num_samples).reshape(20, -1)
        read = [order.trace(slots).located.sample_ids for slots in epochs]
        found = [quality.measure(ids, COUNTS, CLASSES, BATCH) for ids in read]
        most = quality.bound_dispersion(len(COUNTS), len(COUNTS) / lanes / window, BATCH)
        dispersion = float(np.mean([f.dispersion for f in found]))
        assert 1 < dispersion <= most * 1.02
        assert np.mean([f.distance for f in found]) <= quality.bound_distance(most, BATCH, CLASSES)


def test_an_order_that_repeats_a_sample_is_refused(quality: ModuleType) -> None:
    with pytest.raises(ValueError, match="repeats"):
        quality.measure(np.zeros(COUNTS.sum(), np.int64), COUNTS, CLASSES, BATCH)


def test_the_account_of_an_epoch_counts_lost_and_repeated_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    study, started = load(monkeypatch, "study_exact"), load(monkeypatch, "started")
    ranks = [{"steps": [[0, 1], [4]]}, {"steps": [[2, 3]]}]
    steps = study.merge([started.Outcome(rank, 0.0, "") for rank in ranks])
    assert steps == [[0, 1, 2, 3], [4]]
    assert study.tally(steps, 5) == (0, 0)
    assert study.tally([*steps, [4, 4]], 7) == (2, 2)
    assert study.merge([started.Outcome(None, 0.0, "died")]) is None
