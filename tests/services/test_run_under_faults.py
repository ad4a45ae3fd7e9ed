"""Runs that read their data from a real S3 server while everything in between goes wrong.

The data lies in a bucket, read with a key that may only read `datasets/`, through a proxy that
misbehaves. Whatever it does, the run ends with the weights of the run that read local files.
"""

import json
import os
import shutil
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.services.conftest import S3Server
from tests.services.proxy import Fault, FaultProxy, Rule
from torchrelay.data.build.dataset_build import BuildRequest, build_dataset
from torchrelay.data.build.input import TextFiles
from torchrelay.data.dataset import open_dataset
from torchrelay.store.open import open_store

pytestmark = pytest.mark.services

STEPS = 48
SHARD_BYTES = 4096
SHARDS = "*/shards/*"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """A dataset in a bucket and in a folder, and how a run over the local one ended."""

    remote: str
    local: str
    shard_bytes: int
    """Bytes of the train split's shards."""
    epochs: float
    """Passes over the train split in a run."""
    weights: str
    ids: list[list[int]]
    """Sample ids of every step."""


def recipe(store: str, data_store: str, cache: Path, **data: Any) -> dict[str, Any]:
    return {
        "run": {"name": "t", "seed": 5, "store": store},
        "model": {"decoder": {"layers": 1, "width": 16, "heads": 2}},
        "data": {
            "dataset": "words",
            "store": data_store,
            "sequence_length": 32,
            "lanes": 4,
            "window_shards": 2,
            "prefetch": 2,
            "cache": {"folder": str(cache), "size": "auto"},
            **data,
        },
        "train": {
            "steps": STEPS,
            "global_batch": 64,
            "validation_samples": 8,
            "schedule": {"kind": "constant"},
        },
        "checkpoint": {"every": 20},
        "observe": {"sample_log": True},
    }


def run(folder: Path, tree: dict[str, Any], *options: str, variables: dict[str, str]) -> tuple[int, str]:
    """Train to the end; exit code and all that was printed."""
    folder.mkdir(exist_ok=True)
    (folder / "recipe.yaml").write_text(yaml.safe_dump(tree))
    done = subprocess.run(
        [sys.executable, "-m", "torchrelay", "train", "recipe.yaml", *options],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
        capture_output=True,
        text=True,
        timeout=200,
    )
    return done.returncode, done.stdout + done.stderr


def weights_of(folder: Path) -> str:
    shown = subprocess.run(
        [sys.executable, "-m", "torchrelay", "checkpoint", "show", "t", "--store", "store", "--json"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return str(json.loads(shown.stdout)["weights_sha256"])


def records(folder: Path, kind: str) -> list[dict[str, Any]]:
    lines = [
        json.loads(line)
        for path in sorted((folder / "store/runs/t/journal").rglob("*.jsonl"))
        for line in path.read_text().splitlines()
    ]
    return [line for line in lines if line["kind"] == kind]


def sample_ids(folder: Path) -> list[list[int]]:
    return [record["ids"] for record in sorted(records(folder, "samples"), key=lambda r: r["step"])]


@pytest.fixture(scope="module")
def bench(s3_server: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("bench")
    for number in range(150):
        text = " ".join(str(number * k % 997) for k in range(170))
        (folder / f"{number:03d}.txt").write_text(text)
    remote = f"s3://{s3_server.bucket}"
    before = dict(os.environ)
    os.environ.update(s3_server.environment)
    try:
        request = BuildRequest(
            documents=TextFiles((f"{folder}/*.txt",)), validation=0.1, shard_bytes=SHARD_BYTES
        )
        for url in (remote, str(folder / "data")):
            build_dataset(open_store(url), "words", request, progress=lambda *_: None)
        manifest = open_dataset(open_store(remote), "words").manifest
    finally:
        os.environ.clear()
        os.environ.update(before)
    code, said = run(folder / "clean", recipe("store", str(folder / "data"), folder / "none"), variables={})
    assert code == 0, said
    ids = sample_ids(folder / "clean")
    num_samples = sum(max(0, (entry.tokens - 1) // 32) for entry in manifest.splits["train"])
    yield Bench(
        remote=remote,
        local=str(folder / "data"),
        shard_bytes=manifest.totals("train").bytes,
        epochs=STEPS * 64 / num_samples,
        weights=weights_of(folder / "clean"),
        ids=ids,
    )


@pytest.fixture
def student(s3_server: S3Server, fault_proxy: FaultProxy) -> dict[str, str]:
    """The environment of a key that may only read `datasets/`, with the proxy in between."""
    return {**s3_server.datasets_only, "AWS_ENDPOINT_URL": fault_proxy.endpoint}


def assert_same(folder: Path, bench: Bench) -> None:
    assert sample_ids(folder) == bench.ids
    assert weights_of(folder) == bench.weights


def test_every_shard_is_fetched_once_and_the_result_is_that_of_local_files(
    bench: Bench, student: dict[str, str], fault_proxy: FaultProxy, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    code, said = run(
        folder, recipe("store", bench.remote, tmp_path / "cache"), "--nproc", "2", variables=student
    )
    assert code == 0, said
    assert sum(fault_proxy.fetched(SHARDS).values()) <= 1.1 * bench.shard_bytes * max(1, bench.epochs) * 1.2
    assert not [r for r in fault_proxy.requests if r.method in ("PUT", "POST", "DELETE")]
    steps = records(folder, "step")
    assert sum((record["fetch"] or {}).get("fetched_bytes", 0) for record in steps) > 0


FAULTS: dict[str, list[Rule]] = {
    "503 storm": [Rule(Fault.STATUS, key=SHARDS, status=503, share=0.5)],
    "429 and 500": [
        Rule(Fault.STATUS, key=SHARDS, status=429, code="SlowDown", times=5),
        Rule(Fault.STATUS, key=SHARDS, status=500, code="InternalError", times=5),
    ],
    "reset in mid-body": [Rule(Fault.RESET, key=SHARDS, at=1500, times=8)],
    "cut short": [Rule(Fault.TRUNCATE, key=SHARDS, at=1000, times=6)],
    "flipped bytes": [Rule(Fault.FLIP, key=SHARDS, at=777, times=4)],
    "another shard's bytes": [Rule(Fault.REPLACE, key=SHARDS, body=bytes(range(256)) * 20, times=4)],
    "expired credentials": [Rule(Fault.STATUS, key=SHARDS, status=403, code="ExpiredToken", times=1)],
    "slow": [Rule(Fault.SLOW, key=SHARDS, bytes_per_s=2000, times=6)],
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_on_the_way_do_not_change_the_run(
    bench: Bench, student: dict[str, str], fault_proxy: FaultProxy, tmp_path: Path, name: str
) -> None:
    for rule in FAULTS[name]:
        fault_proxy.set(rule)
    folder = tmp_path / "run"
    code, said = run(folder, recipe("store", bench.remote, tmp_path / "cache"), variables=student)
    assert code == 0, said
    assert any(request.fault for request in fault_proxy.requests), "the fault never happened"
    assert_same(folder, bench)


def test_a_small_cache_changes_nothing_and_never_exceeds_its_budget(
    bench: Bench, student: dict[str, str], tmp_path: Path
) -> None:
    budget = int(bench.shard_bytes * 0.55)
    tree = recipe("store", bench.remote, tmp_path / "cache")
    tree["data"]["cache"]["size"] = budget
    seen: list[int] = []
    with meanwhile(lambda: seen.append(shard_sizes(tmp_path / "cache")), every_s=0.002):
        code, said = run(tmp_path / "run", tree, variables=student)
    assert code == 0, said
    assert 0 < max(seen) <= budget
    assert_same(tmp_path / "run", bench)


def test_a_cache_that_is_too_small_is_refused_with_the_figure(
    bench: Bench, student: dict[str, str], tmp_path: Path
) -> None:
    tree = recipe("store", bench.remote, tmp_path / "cache")
    tree["data"]["cache"]["size"] = 2 * SHARD_BYTES
    code, said = run(tmp_path / "run", tree, variables=student)
    assert code == 78
    assert "data.cache.size" in said and "needs" in said
    assert not (tmp_path / "run/store/runs").exists()


def test_a_cache_folder_that_vanishes_changes_nothing(
    bench: Bench, student: dict[str, str], tmp_path: Path
) -> None:
    tree = recipe("store", bench.remote, tmp_path / "cache")
    with meanwhile(lambda: shutil.rmtree(tmp_path / "cache", ignore_errors=True), every_s=0.3):
        code, said = run(tmp_path / "run", tree, variables=student)
    assert code == 0, said
    assert_same(tmp_path / "run", bench)


def test_two_runs_at_once_share_one_cache(
    bench: Bench, student: dict[str, str], fault_proxy: FaultProxy, tmp_path: Path
) -> None:
    tree = recipe("store", bench.remote, tmp_path / "cache")
    processes = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "recipe.yaml").write_text(yaml.safe_dump(tree))
        processes.append(
            subprocess.Popen(
                [sys.executable, "-m", "torchrelay", "train", "recipe.yaml"],
                cwd=tmp_path / name,
                env={**os.environ, "OMP_NUM_THREADS": "1", **student},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        )
    assert [process.wait(timeout=200) for process in processes] == [0, 0]
    for name in ("a", "b"):
        assert_same(tmp_path / name, bench)
    assert sum(fault_proxy.fetched(SHARDS).values()) <= 1.1 * bench.shard_bytes * 1.2


def test_a_shard_that_stays_damaged_is_named_and_kept(
    bench: Bench, student: dict[str, str], fault_proxy: FaultProxy, tmp_path: Path
) -> None:
    fault_proxy.set(Rule(Fault.FLIP, key=SHARDS, at=500))
    code, said = run(tmp_path / "run", recipe("store", bench.remote, tmp_path / "cache"), variables=student)
    assert code == 78
    assert "is damaged" in said, said
    assert list((tmp_path / "cache").rglob("quarantine/*"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"AWS_SECRET_ACCESS_KEY": "wrong"}, "access denied"),
        ({"AWS_ACCESS_KEY_ID": "nobody"}, "access denied"),
    ],
)
def test_a_wrong_key_is_said_before_anything_starts(
    bench: Bench, student: dict[str, str], tmp_path: Path, change: dict[str, str], message: str
) -> None:
    tree = recipe("store", bench.remote, tmp_path / "cache")
    code, said = run(tmp_path / "run", tree, variables={**student, **change})
    assert code == 78
    assert message in said
    assert "wrong" not in said.replace("wrong key", "")
    assert not (tmp_path / "run/store/runs").exists()


def test_a_clock_that_is_wrong_is_said(
    bench: Bench, student: dict[str, str], fault_proxy: FaultProxy, tmp_path: Path
) -> None:
    fault_proxy.set(Rule(Fault.STATUS, status=403, code="RequestTimeTooSkewed"))
    tree = recipe("store", bench.remote, tmp_path / "cache")
    code, said = run(tmp_path / "run", tree, variables=student)
    assert code == 78
    assert "clock" in said


def test_a_bucket_that_is_not_there_is_said(bench: Bench, student: dict[str, str], tmp_path: Path) -> None:
    tree = recipe("store", f"s3://{uuid.uuid4().hex}", tmp_path / "cache")
    code, said = run(tmp_path / "run", tree, variables=student)
    assert code == 78
    assert "bucket" in said or "access denied" in said


@contextmanager
def meanwhile(look: Callable[[], object], *, every_s: float) -> Iterator[None]:
    """Call something again and again, in a thread of its own."""
    ended = threading.Event()

    def repeat() -> None:
        while not ended.wait(every_s):
            look()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def shard_sizes(folder: Path) -> int:
    """Bytes of all shards in a cache, those that are still arriving too."""
    total = 0
    for path in folder.rglob("*"):
        with suppress(OSError):
            total += path.stat().st_size if len(path.name.split(".")[0]) == 64 else 0
    return total
