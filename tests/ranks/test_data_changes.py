"""What a run reads when its data is mixed, cut short, left out or exchanged on the way."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.ranks.conftest import Relay
from torchrelay.data.dataset import open_dataset
from torchrelay.store.open import open_store

pytestmark = pytest.mark.ranks

TRAIN = {"global_batch": 12, "schedule": {"kind": "constant"}, "validation_samples": 4}


@pytest.fixture
def place(new_relay: Callable[[str], Relay]) -> Callable[..., Relay]:
    def make(name: str, steps: int, **data: Any) -> Relay:
        relay = new_relay(name)
        relay.write_recipe(
            data={"sequence_length": 80, **data}, train={**TRAIN, "steps": steps}, checkpoint={"every": 4}
        )
        return relay

    return make


def read(relay: Relay) -> list[int]:
    return [i for ids in relay.sample_ids().values() for i in ids]


def test_a_mixture_with_a_curriculum_goes_on_over_cuts_and_other_worlds(place: Callable[..., Relay]) -> None:
    mixture = [{"dataset": "words", "weight": 3.0}, {"dataset": "other", "weight": 1.0}]
    curriculum = [
        {"at": 8, "weights": {"words": 0.0, "other": 1.0}},
        {"at": 14, "weights": {"words": 1.0, "other": 1.0}},
    ]
    relay = place("mixture", 20, dataset=None, mixture=mixture, curriculum=curriculum)
    relay.train("train.steps=6", nproc=2)
    relay.train("train.steps=11", "data.prefetch=2", nproc=3)
    relay.train(nproc=1)
    ids = read(relay)
    assert relay.sample_ids() == relay.planned_ids(steps=20)
    words = open_store(str(relay.store))
    base = sum((e.tokens - 1) // 80 for e in open_dataset(words, "words").manifest.splits["train"])
    assert min(ids[8 * 12 : 14 * 12]) >= base
    last = relay.kind("data")[-1]
    assert [part["dataset"] for part in last["parts"]] == ["words", "other"]
    assert [part["samples"] for part in last["parts"]] == [
        sum(i < base for i in ids),
        sum(i >= base for i in ids),
    ]


def test_an_epoch_that_ends_with_a_step_is_exact_on_any_world(place: Callable[..., Relay]) -> None:
    """216 samples in steps of 20 (11 of them, the last with 16), on three processes and on one."""
    relay = place("stop", 22, epoch_end="stop")
    settings = ("train.global_batch=20", "train.micro_batch=5")
    relay.train("train.steps=9", *settings, nproc=3)
    relay.train(*settings)
    ids = read(relay)
    assert sorted(ids[:216]) == sorted(ids[216:]) == list(range(216))
    counts = [record["samples"] for record in relay.steps()]
    assert counts[9:13] == [200, 216, 236, 256]
    assert relay.steps()[10]["tokens"] == 216 * 80
    assert relay.sample_ids() == relay.planned_ids(*settings, steps=22)


def test_a_whole_run_and_a_cut_one_have_the_same_losses_at_the_end_of_an_epoch(
    place: Callable[..., Relay],
) -> None:
    runs = []
    for name, nproc in (("one", 1), ("two", 2)):
        relay = place(f"weights-{name}", 11, epoch_end="stop")
        relay.train("train.global_batch=20", "train.micro_batch=10", nproc=nproc)
        runs.append(relay.losses())
    assert runs[0] == pytest.approx(runs[1], rel=1e-5)


def test_slots_left_out_later_leave_the_past_alone(place: Callable[..., Relay]) -> None:
    relay = place("skip", 12)
    planned = [i for ids in relay.planned_ids(steps=16).values() for i in ids]
    relay.train("train.steps=5", nproc=2)
    relay.train('data.skip=["10..20", "58..65", "100..101"]')
    slots = [*range(60), *range(65, 100), *range(101, 150)]
    assert read(relay) == [planned[slot] for slot in slots]


def test_a_run_migrates_to_another_version_and_takes_in_a_part(
    place: Callable[..., Relay], tmp_path: Path
) -> None:
    relay = place("migrate", 9)
    relay.train("train.steps=4", nproc=2)
    version = relay.kind("start")[0]["dataset_version"]
    old = read(relay)
    refused = relay.train("data.dataset=other", code=78)
    assert f"data.migrate_from: {version[:12]}" in refused.stderr
    relay.train("data.dataset=other", f"data.migrate_from={version[:12]}", nproc=2)
    new = read(relay)[len(old) :]
    assert len(new) == 5 * 12 and min(new) >= 216 > max(old)
    mixture = '[{"dataset": "other", "weight": 1.0}, {"dataset": "words", "weight": 1.0}]'
    relay.train("train.steps=14", "data.dataset=null", f"data.mixture={mixture}")
    mixed = read(relay)[len(old) + len(new) :]
    assert {i >= 216 for i in mixed} == {True, False}
    assert not set(mixed) & set(new)
    told = "\n".join(relay.kind("resume")[-1]["changes"])
    assert "data.mixture" in told
