"""A run that was cut and went on elsewhere is the run that was never cut.

The dataset is read as 216 samples of 80 tokens, 24 a step: an epoch is exactly nine steps.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.ranks.conftest import Relay, assert_close, values
from torchrelay.checkpoint.shelf import Shelf
from torchrelay.store.open import open_store

pytestmark = pytest.mark.ranks

EPOCH = 9
STEPS = 20
TRAIN = {
    "steps": STEPS,
    "global_batch": 24,
    # The fall has a length of its own, so that a run may be cut short by train.steps.
    "schedule": {"kind": "cosine", "warmup": 4, "decay": 30},
}


@pytest.fixture(scope="module")
def place(new_relay: Callable[[str], Relay]) -> Callable[[str], Relay]:
    def make(name: str) -> Relay:
        relay = new_relay(name)
        relay.write_recipe(data={"sequence_length": 80}, train=TRAIN, checkpoint={"every": 3})
        return relay

    return make


@pytest.fixture(scope="module")
def whole(place: Callable[[str], Relay]) -> Relay:
    """Never cut, on one process."""
    relay = place("whole")
    relay.train()
    return relay


@pytest.fixture(scope="module")
def saved_on_four(place: Callable[[str], Relay]) -> Relay:
    """Cut at step 12, in the middle of the second epoch, on four processes."""
    relay = place("four")
    relay.train("train.steps=12", nproc=4)
    return relay


@pytest.fixture(scope="module")
def saved_on_two_by_two(place: Callable[[str], Relay]) -> Relay:
    """Cut at step 7, on two copies of a model sharded over two."""
    relay = place("hsdp")
    relay.train("train.steps=7", "parallel.shard=2", nproc=4)
    return relay


def assert_same_run(relay: Relay, whole: Relay, steps: int = STEPS) -> None:
    ours, theirs = relay.steps(), whole.steps()[:steps]
    for key in ("loss", "grad_norm"):
        assert_close([record[key] for record in ours], [record[key] for record in theirs])
    exact = ("step", "samples", "tokens", "lr")
    assert values(ours, *exact) == values(theirs, *exact)
    assert relay.sample_ids() == relay.planned_ids(steps=steps)


def last_resume(relay: Relay) -> dict:
    return relay.kind("resume")[-1]


def test_an_epoch_is_nine_steps_and_the_next_one_has_its_own_order(whole: Relay) -> None:
    ids = whole.sample_ids()
    assert ids == whole.planned_ids(steps=STEPS)
    epochs = [[i for step in range(EPOCH * e + 1, EPOCH * (e + 1) + 1) for i in ids[step]] for e in range(2)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(216))
    assert epochs[0] != epochs[1]


@pytest.mark.parametrize(
    ("nproc", "settings"),
    [(1, []), (2, ["data.prefetch=2"]), (3, ["parallel.engine=fsdp"])],
    ids=["on 1", "on 2", "on 3 with fsdp"],
)
def test_saved_on_four_and_resumed_on_fewer(
    saved_on_four: Relay, whole: Relay, tmp_path: Path, nproc: int, settings: list[str]
) -> None:
    relay = saved_on_four.copy_to(tmp_path / "copy")
    relay.train(*settings, nproc=nproc)
    assert_same_run(relay, whole)
    resume = last_resume(relay)
    assert (resume["step"], resume["samples"], resume["tokens"]) == (12, 12 * 24, 12 * 24 * 80)
    assert (resume["saved_world"], resume["world"], resume["attempt"]) == (4, nproc, 2)
    told = "\n".join(resume["changes"])
    assert f"processes: 4 → {nproc}" in told
    assert "train.steps: 12 → 20" in told
    assert "random generators of Python and NumPy: seeded anew" in told
    assert ("engine: ddp → fsdp" in told) == (nproc == 3)
    assert_close([relay.kind("validation")[-1]["loss"]], [whole.kind("validation")[-1]["loss"]])


def test_cut_three_times_within_an_epoch_and_at_its_edge(place: Callable[[str], Relay], whole: Relay) -> None:
    relay = place("often")
    for steps, nproc in ((4, 1), (6, 2), (EPOCH, 1), (STEPS, 2)):
        relay.train(f"train.steps={steps}", nproc=nproc)
    assert_same_run(relay, whole)
    assert values(relay.kind("resume"), "step", "saved_world", "world") == [(4, 1, 2), (6, 2, 1), (9, 1, 2)]
    assert [r["step"] for r in relay.kind("step")] == list(range(1, STEPS + 1))


def test_two_by_two_to_one_process(saved_on_two_by_two: Relay, whole: Relay, tmp_path: Path) -> None:
    relay = saved_on_two_by_two.copy_to(tmp_path / "copy")
    relay.train("train.steps=14", "parallel.engine=ddp")
    assert_same_run(relay, whole, steps=14)
    told = "\n".join(last_resume(relay)["changes"])
    for change in ("engine: fsdp → ddp", "replicate: 2 → 1", "shard: 2 → 1", "processes: 4 → 1"):
        assert change in told


def test_two_by_two_to_three_shards_to_two_copies(
    saved_on_two_by_two: Relay, whole: Relay, tmp_path: Path
) -> None:
    relay = saved_on_two_by_two.copy_to(tmp_path / "copy")
    relay.train("train.steps=10", "parallel.engine=fsdp", nproc=3)
    relay.train("train.steps=14", "parallel.engine=ddp", nproc=2)
    assert_same_run(relay, whole, steps=14)
    assert values(relay.kind("resume"), "step", "saved_world") == [(7, 4), (10, 3)]


def test_dropout_and_a_tied_head_are_the_same_on_other_worlds_and_after_a_resume(
    place: Callable[[str], Relay],
) -> None:
    decoder = {"layers": 2, "width": 24, "heads": 3, "dropout": 0.2, "tied": True}
    pinned = {**TRAIN, "steps": 12, "micro_batch": 4}
    whole, cut = place("dropout"), place("dropout-cut")
    for relay in (whole, cut):
        relay.write_recipe(
            model={"decoder": decoder},
            data={"sequence_length": 80},
            train=pinned,
            checkpoint={"every": 3},
        )
    whole.train()
    cut.train("train.steps=6", nproc=2)
    cut.train("parallel.engine=fsdp", nproc=3)
    assert_same_run(cut, whole, steps=12)
    assert last_resume(cut)["step"] == 6
    shelf = Shelf(open_store(str(cut.store)), "t")
    tensors = shelf.read_manifest(shelf.usable()[0]).tensors
    assert "model/embed_tokens.weight" in tensors
    assert "model/lm_head.weight" not in tensors


def test_in_bf16_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(place: Callable[[str], Relay]) -> None:
    settings = ["train.precision=bf16", "parallel.engine=fsdp"]
    whole, cut = place("bf16"), place("bf16-cut")
    whole.train("train.steps=8", *settings, nproc=2)
    cut.train("train.steps=5", *settings, nproc=2)
    cut.train("train.steps=8", *settings, nproc=2)
    assert cut.losses() == whole.losses()
    assert cut.newest() == whole.newest()
