"""Data of every kind, built or adopted by the command line and then trained on: the same on any world."""

import csv
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from PIL import Image

from tests.conftest import REPOSITORY
from tests.ranks.conftest import Relay, assert_close, kill, make_relay, rank_pids, values

pytestmark = pytest.mark.ranks

ADOPTED = REPOSITORY / "tests/data/adopted"
STEPS = 6
DECODE = "data.decode=tests.ranks.kinds_source:decode"
RAGGED = (
    "data.decode=tests.ranks.kinds_source:decode_ragged",
    "data.collate=tests.ranks.kinds_source:collate",
)
DECODER = {"decoder": {"layers": 1, "width": 16, "heads": 2}}
MIXTURE = [{"dataset": "words", "weight": 3.0}, {"dataset": "other", "weight": 1.0}]


def classifier(inputs: list[str], width: int, label: str = "label") -> dict[str, Any]:
    options = {"inputs": inputs, "width": width, "label": label}
    return {"decoder": None, "python": "tests.ranks.kinds_source:classifier", "options": options}


def curriculum(*changes: int) -> list[dict[str, Any]]:
    """The other dataset alone, then both alike, and so on."""
    weights = [{"words": 0.0, "other": 1.0}, {"words": 1.0, "other": 1.0}]
    return [{"at": at, "weights": weights[number % 2]} for number, at in enumerate(changes)]


class Case(NamedTuple):
    model: dict[str, Any]
    data: dict[str, Any]
    settings: tuple[str, ...] = ()
    how: tuple[str, ...] = ()
    """What may differ on two processes."""
    is_unpacked: bool = False
    """Whether its shards go through the node's cache although they lie on this machine."""
    is_measured: bool = True
    """Whether it has a validation split."""
    epoch: int | None = None
    """The one that the next sample would be of, from 0."""


IMAGES = Case(
    classifier(["pixel_values"], 3 * 8 * 8, "labels"),
    {"dataset": "pictures", "decode": "image", "decode_options": {"size": 8, "augment": "crop_flip"}},
    how=("data.workers=1", "data.prefetch=2"),
)
VIT = {
    "model_type": "vit",
    "image_size": 8,
    "patch_size": 4,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
IMAGE_CLASSES = {"decoder": None, "huggingface": {"config": VIT, "task": "image-classification"}}
MATRIX = classifier(["x"], 6)

CASES = {
    "images": IMAGES,
    "images, ddp": IMAGES._replace(model=IMAGE_CLASSES, how=("parallel.engine=ddp",)),
    "images, fsdp": IMAGES._replace(
        model=IMAGE_CLASSES, how=("parallel.engine=fsdp", "train.micro_batch=3", "train.recompute=full")
    ),
    "table": Case(classifier(["height", "width"], 2), {"dataset": "flowers"}, how=("data.prefetch=1",)),
    "arrays without validation": Case(classifier(["x"], 6), {"dataset": "arrays"}, is_measured=False),
    "mds": Case(MATRIX, {"dataset": "mds"}, (DECODE,), how=("data.workers=1",), epoch=72 // 24),
    "mds, zstd": Case(MATRIX, {"dataset": "mds-zstd"}, (DECODE,), is_unpacked=True),
    "webdataset": Case(
        MATRIX,
        {"dataset": "webdataset", "decode_options": {"matrix": "x.npy", "label": "cls"}},
        (DECODE,),
        is_measured=False,
        epoch=72 // 15,
    ),
    "parquet": Case(MATRIX, {"dataset": "parquet"}, (DECODE,), is_unpacked=True),
    "litdata, put together by a function": Case(
        classifier(["x"], 4), {"dataset": "litdata"}, RAGGED, how=("train.micro_batch=2",), is_measured=False
    ),
    "litdata tokens": Case(
        DECODER, {"dataset": "litdata-tokens", "sequence_length": 16}, is_measured=False
    ),
    "megatron": Case(
        DECODER, {"dataset": "megatron", "sequence_length": 48, "reading": "documents"}, is_measured=False
    ),
    "packs with bounds": Case(
        DECODER,
        {"dataset": "packs", "sequence_length": 199, "document_bounds": True},
        how=("train.micro_batch=3",),
    ),
    "mixture": Case(
        DECODER,
        {"dataset": None, "mixture": MIXTURE, "curriculum": curriculum(2, 4), "sequence_length": 40},
        how=("data.prefetch=1",),
    ),
}  # fmt: skip


def write_pictures(folder: Path) -> None:
    rng = np.random.default_rng(0)
    for number in range(48):
        path = folder / f"pictures/kind{number % 3}/{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 80, (12, 14, 3)) + 80 * np.eye(3, dtype=int)[number % 3]
        Image.fromarray(pixels.astype(np.uint8)).save(path)


def write_tables(folder: Path) -> None:
    with (folder / "flowers.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["height", "width", "kind"])
        rows.writerows([1.5 + n % 7, 0.5 + n % 3, ["iris", "rose"][n % 2]] for n in range(90))
    x = np.random.default_rng(1).standard_normal((80, 2, 3)).astype(np.float32)
    np.savez(folder / "arrays.npz", x=x, label=np.arange(80) % 7)


def write_texts(folder: Path) -> None:
    for number in range(40):
        text = " ".join(f"w{(number * 7 + k * k) % 53}" for k in range(6 + number))
        (folder / f"{number:02d}.txt").write_text(text)


BUILDS = {
    "pictures": ["--images", "pictures", "--validation", "20%", "--shard-size", "4KiB"],
    "flowers": ["--csv", "flowers.csv", "--label-field", "kind", "--validation", "20%"],
    "arrays": ["--npz", "arrays.npz", "--validation", "0%", "--shard-size", "1KiB"],
    "packs": ["--text", "*.txt", "--pack", "200", "--validation", "20%", "--shard-size", "2KiB"],
    "words": ["--text", "*.txt", "--validation", "20%", "--shard-size", "2KiB"],
    "other": ["--text", "1*.txt", "--validation", "20%", "--shard-size", "2KiB"],
}
FOLDERS = ["mds", "mds-zstd", "webdataset", "parquet", "litdata", "litdata-tokens", "megatron"]


@pytest.fixture(scope="module")
def kinds_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a dataset of every kind."""
    folder = tmp_path_factory.mktemp("kinds")
    for write in (write_pictures, write_tables, write_texts):
        write(folder)
    relay = Relay(folder)
    for name, words in BUILDS.items():
        relay.run("data", "build", name, *words, "--processes", "1", "--store", "store")
    for name in FOLDERS:
        relay.run("data", "adopt", name, str(ADOPTED / name), "--store", "store")
    return folder / "store"


@pytest.fixture
def place(
    tmp_path: Path, kinds_store: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str, Case, int], Relay]:
    """Makes places with a recipe for a case; all of a test have one cache."""
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()

    def make(name: str, case: Case, steps: int = STEPS) -> Relay:
        (tmp_path / name).mkdir()
        relay = make_relay(tmp_path / name, kinds_store)
        data = {"sequence_length": None, **case.data, "cache": {"folder": str(tmp_path / "cache")}}
        train = {"steps": steps, "optimizer": {"lr": 1e-2}, "schedule": {"kind": "constant"}}
        relay.write_recipe(model=case.model, data=data, train=train, checkpoint={"every": 1000})
        return relay

    return make


@pytest.mark.parametrize("name", CASES)
def test_two_processes_learn_what_one_learns_from_the_samples_of_the_plan(
    place: Callable[..., Relay], tmp_path: Path, name: str
) -> None:
    case = CASES[name]
    alone, pair = place("alone", case), place("pair", case)
    alone.train(*case.settings)
    pair.train(*case.settings, *case.how, nproc=2)
    for key in ("loss", "grad_norm"):
        assert_close([r[key] for r in pair.steps()], [r[key] for r in alone.steps()])
    exact = ("step", "samples", "tokens")
    assert values(pair.steps(), *exact) == values(alone.steps(), *exact)
    planned = alone.planned_ids(*case.settings, steps=STEPS)
    assert alone.sample_ids() == pair.sample_ids() == planned
    assert len({i for ids in planned.values() for i in ids}) > 12
    assert len(set(alone.losses())) == STEPS
    parts = pair.kind("data")[-1]["parts"]
    assert sum(part["samples"] for part in parts) == STEPS * 12
    assert case.epoch in (None, parts[0]["epoch"])
    measured = [[r["loss"] for r in relay.kind("validation")] for relay in (pair, alone)]
    assert (len(measured[0]) == 2) == case.is_measured
    if case.is_measured:
        assert_close(*measured)
    assert (tmp_path / "cache").exists() == case.is_unpacked


def test_what_workers_decode_is_bitwise_what_the_rank_decodes(place: Callable[..., Relay]) -> None:
    runs = []
    for workers in (0, 2):
        runs.append(place(str(workers), IMAGES))
        runs[-1].train(f"data.workers={workers}", f"data.prefetch={workers}", nproc=1)
    assert runs[0].losses() == runs[1].losses()
    assert runs[0].newest() == runs[1].newest()
    assert runs[0].sample_ids() == runs[1].sample_ids()


def test_a_packed_dataset_of_this_machine_is_unpacked_once_for_all_runs(
    place: Callable[..., Relay], tmp_path: Path
) -> None:
    case = CASES["mds, zstd"]
    runs = [place(name, case) for name in ("first", "second")]
    runs[0].train(*case.settings, nproc=2)
    unpacked = {path: path.stat().st_ino for path in (tmp_path / "cache/shards").glob("??/*")}
    assert len(unpacked) == 4  # three for training, one for validation
    runs[1].train(*case.settings, nproc=2)
    assert all(path.stat().st_ino == number for path, number in unpacked.items())
    fetched = [sum((r["fetch"] or {}).get("fetched_bytes", 0) for r in run.steps()) for run in runs]
    assert fetched[0] >= fetched[1] == 0
    assert runs[0].losses() == runs[1].losses()


LONG_STEPS = 60
KILLED = {
    "images with workers": IMAGES._replace(settings=("data.workers=2", "data.prefetch=2")),
    "packs": CASES["packs with bounds"],
    "mixture": CASES["mixture"]._replace(
        data={**CASES["mixture"].data, "curriculum": curriculum(13, 31, 44)}, settings=("data.prefetch=2",)
    ),
}


@pytest.mark.parametrize("name", KILLED)
def test_killed_at_random_steps_and_resumed_it_ends_bitwise_equal(
    place: Callable[..., Relay], tmp_path: Path, name: str
) -> None:
    case, choose = KILLED[name], random.Random(name)
    settings = [*case.settings, "checkpoint.every=5"]
    cut, whole = place("cut", case, LONG_STEPS), place("whole", case, LONG_STEPS)
    for first in (4, 28):
        process = cut.start(*settings, nproc=2)
        cut.wait_for_step(process, first + choose.randrange(14))
        kill(choose.choice(rank_pids(process)))
        process.communicate(timeout=60)
        assert process.returncode == 1
        cut.wait_until_gone()
    cut.train(*settings, nproc=2)
    whole.train(*settings, nproc=2)
    assert len(cut.kind("resume")) == 2
    left = [path.name for path in (tmp_path / "tmp").iterdir()]  # neither sockets, locks nor anything else
    assert [name for name in left if not name.startswith("torchinductor")] == []  # torch makes that
    assert cut.losses() == whole.losses()
    assert cut.newest() == whole.newest()
    assert cut.sample_ids() == whole.sample_ids() == whole.planned_ids(*settings, steps=LONG_STEPS)
