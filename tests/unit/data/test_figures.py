"""Counters of what reading cost."""

import threading
from dataclasses import astuple

import pytest

from torchrelay.data.figures import Figures, Meter, name_counts


def test_each_take_begins_anew() -> None:
    meter = Meter()
    meter.add(hits=2, waited_seconds=0.5)
    meter.add(hits=1, evictions=4)
    assert meter.take() == Figures(hits=3, evictions=4, waited_seconds=0.5)
    assert meter.take() == Figures()


def test_figures_add_up() -> None:
    assert Figures(hits=1, fetched_bytes=7) + Figures(hits=2, retries=1) == Figures(
        hits=3, fetched_bytes=7, retries=1
    )


def test_a_counter_that_does_not_exist_is_refused() -> None:
    with pytest.raises(KeyError):
        Meter().add(hit=1)


def test_no_count_is_lost_among_threads() -> None:
    meter = Meter()
    threads = [threading.Thread(target=lambda: [meter.add(hits=1) for _ in range(2000)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20.0)
    assert meter.take().hits == 8000


def test_counts_are_named_and_zeros_left_out() -> None:
    figures = Figures(hits=3, fetch_seconds=0.25)
    assert name_counts(astuple(figures)) == {"hits": 3, "fetch_seconds": 0.25}
    assert name_counts(astuple(Figures())) is None
    assert name_counts(()) is None
