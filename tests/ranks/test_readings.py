"""Whatever a sample is: one recipe gives one curve on any number of processes, read in any way."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.ranks.conftest import Relay, assert_close, make_relay, values
from torchrelay.data.build.dataset_build import BuildRequest, build_dataset
from torchrelay.data.build.input import TextFiles
from torchrelay.store.open import open_store

pytestmark = pytest.mark.ranks

MODEL = {"decoder": {"layers": 1, "width": 16, "heads": 2}}


class Case(NamedTuple):
    data: tuple[str, ...]
    nproc: int
    how: tuple[str, ...]
    """What may differ without changing the curve."""


CASES = {
    "bounds": Case(
        ("data.reading=packed", "data.sequence_length=64", "data.document_bounds=true"),
        2,
        ("parallel.engine=fsdp", "train.recompute=full", "train.micro_batch=5", "data.prefetch=2"),
    ),
    "packs": Case(("data.sequence_length=319",), 3, ("train.micro_batch=4", "data.workers=1")),
    "documents of like length": Case(
        ("data.reading=documents", "data.sequence_length=300", "data.pad=longest", "train.micro_batch=5"),
        3,
        ("data.prefetch=1",),
    ),
    "documents by tokens": Case(
        (
            "data.reading=documents",
            "data.sequence_length=300",
            "data.pad=longest",
            "data.batch_tokens=600",
        ),
        2,
        ("parallel.engine=fsdp", "data.prefetch=2", "data.workers=2"),
    ),
    "epochs that stop": Case(
        ("data.reading=documents", "data.sequence_length=300", "data.epoch_end=stop", "train.micro_batch=5"),
        4,
        ("data.prefetch=1",),
    ),
}


@pytest.fixture(scope="module")
def packed_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a dataset of 45 documents of 10 to 290 letters, and a plan for packs of 320."""
    folder = tmp_path_factory.mktemp("packed")
    for number in range(45):
        text = "".join(chr(97 + (number + k * k) % 23) for k in range(10 + 61 * number % 281))
        (folder / f"{number:02d}.txt").write_text(text)
    request = BuildRequest(
        documents=TextFiles((f"{folder}/*.txt",)), validation=0.2, shard_bytes=4096, pack=320
    )
    build_dataset(open_store(str(folder / "store")), "words", request, progress=lambda *_: None)
    return folder / "store"


@pytest.fixture
def place(tmp_path_factory: pytest.TempPathFactory, packed_store: Path) -> Callable[[str], Relay]:
    def make(name: str) -> Relay:
        relay = make_relay(tmp_path_factory.mktemp(name), packed_store)
        relay.write_recipe(
            model=MODEL,
            data={"sequence_length": None},
            train={"steps": 8, "global_batch": 20},
            checkpoint={"every": 1000},
        )
        return relay

    return make


@pytest.mark.parametrize("case", CASES)
def test_the_curve_is_that_of_one_process(place: Callable[[str], Relay], case: str) -> None:
    data, nproc, how = CASES[case]
    alone, relay = place("alone"), place("world")
    alone.train(*data)
    relay.train(*data, *how, nproc=nproc)
    ours, theirs = relay.steps(), alone.steps()
    for key in ("loss", "grad_norm"):
        assert_close([record[key] for record in ours], [record[key] for record in theirs])
    assert values(ours, "step", "samples", "tokens") == values(theirs, "step", "samples", "tokens")
    read, read_alone = relay.sample_ids(), alone.sample_ids()
    assert {step: sorted(ids) for step, ids in read.items()} == {
        step: sorted(ids) for step, ids in read_alone.items()
    }
    planned = {
        step: sorted(i for i in ids if i >= 0) for step, ids in alone.planned_ids(*data, steps=8).items()
    }
    assert {step: sorted(ids) for step, ids in read.items()} == planned
    assert ours[-1]["loss"] < ours[0]["loss"]
