"""Datasets that are built, adopted and copied by the command line in a bucket of a real S3 server."""

import json
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.conftest import REPOSITORY
from tests.services.conftest import S3Server
from tests.services.proxy import Fault, FaultProxy, Rule
from tests.services.test_run_under_faults import records, run, sample_ids, weights_of
from torchrelay.data.dataset import list_refs, open_dataset
from torchrelay.store.open import open_store

pytestmark = pytest.mark.services

ADOPTED = REPOSITORY / "tests/data/adopted"
LIMIT_S = 120

Relay = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def relay(torchrelay: Relay) -> Relay:
    """The command line, which must end well unless another code is told."""

    def call(*words: str, code: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
        done = torchrelay(*words, timeout_s=LIMIT_S, **environment)
        assert done.returncode == code, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    return call


def write_lines(folder: Path) -> None:
    for number in range(4):
        lines = [json.dumps({"text": f"{number} {n} " * (3 + n % 40)}) for n in range(400)]
        (folder / f"{number}.jsonl").write_text("\n".join(lines))


def build_words(store: str, *more: str) -> list[str]:
    settings = ["--shard-size", "8KiB", "--unit-size", "16KiB", "--validation", "10%"]
    words = ["data", "build", "lines", "--jsonl", "*.jsonl", "--field", "text", *settings]
    return [*words, "--store", store, "--work", "work", *more]


def put_shards(proxy: FaultProxy) -> Counter[str]:
    """Shards whose upload was answered well, and how often."""
    done = [r for r in proxy.requests if r.method == "PUT" and r.status == 200 and "/shards/" in r.key]
    return Counter(request.key for request in done)


def test_a_build_of_two_processes_into_a_bucket_is_killed_and_ends_as_if_it_had_not_been(
    relay: Relay, faulty_s3: FaultProxy, s3: S3Server, tmp_path: Path
) -> None:
    write_lines(tmp_path)
    remote = f"s3://{s3.bucket}/{uuid.uuid4().hex}"
    relay(*build_words("local", "--processes", "1"))
    local = open_store(str(tmp_path / "local"))
    faulty_s3.set(Rule(Fault.SLOW, method="PUT", key="*/shards/*", bytes_per_s=40_000))
    command = [sys.executable, "-m", "torchrelay", *build_words(remote, "--processes", "2")]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL, start_new_session=True) as killed:
        deadline = time.monotonic() + LIMIT_S
        while len(put_shards(faulty_s3)) < 8:
            assert killed.poll() is None and time.monotonic() < deadline
            time.sleep(0.01)
        helpers = psutil.Process(killed.pid).children(recursive=True)
        killed.send_signal(signal.SIGKILL)
    assert len(helpers) >= 2
    assert psutil.wait_procs(helpers, timeout=10)[1] == []
    assert list_refs(open_store(remote), "lines") == []
    before = put_shards(faulty_s3)
    faulty_s3.clear()
    relay(*build_words(remote, "--processes", "2"))
    ours, theirs = (open_dataset(store, "lines").manifest for store in (open_store(remote), local))
    assert ours.version == theirs.version
    shards = {f"datasets/lines/{entry.key}" for entries in ours.splits.values() for entry in entries}
    assert shards == {entry.key for entry in open_store(remote).list("datasets/lines/shards")}
    again = set(put_shards(faulty_s3)) & set(before)
    assert len(again) <= 4 < len(shards) - len(again)  # what was in the air, at most
    relay("data", "verify", "lines", "--store", remote)
    assert not list((tmp_path / "work").iterdir())


RAW: dict[str, dict[str, str]] = {
    "webdataset": {"matrix": "x.npy", "label": "cls"},
    "mds": {},
    "mds-zstd": {},
}
"""Folders that are adopted, and how their samples are decoded."""


def recipe(dataset: str, store: str, cache: Path, options: dict[str, str]) -> dict[str, Any]:
    data = {
        "dataset": dataset,
        "store": store,
        "decode": "tests.ranks.kinds_source:decode",
        "decode_options": options,
        "prefetch": 1,
        "cache": {"folder": str(cache)},
    }
    model = {"python": "tests.ranks.kinds_source:classifier", "options": {"inputs": ["x"], "width": 6}}
    return {
        "run": {"name": "t", "seed": 5, "store": "store"},
        "model": model,
        "data": data,
        "train": {"steps": 12, "global_batch": 10, "schedule": {"kind": "constant"}},
        "checkpoint": {"every": 100},
        "observe": {"sample_log": True},
    }


def upload(folder: Path, url: str) -> None:
    store = open_store(url)
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            store.put(str(path.relative_to(folder)), path.read_bytes())


@pytest.mark.parametrize("kind", RAW)
def test_a_run_from_an_adopted_folder_of_a_bucket_is_that_from_local_files_whatever_happens(
    relay: Relay, s3: S3Server, fault_proxy: FaultProxy, tmp_path: Path, kind: str
) -> None:
    bucket, name = f"s3://{s3.bucket}", f"{kind}-{uuid.uuid4().hex}"
    raw = f"{bucket}/datasets/raw-{name}"
    upload(ADOPTED / kind, raw)
    relay("data", "adopt", name, raw, "--store", bucket)
    relay("data", "adopt", name, str(ADOPTED / kind), "--store", "local")
    manifests = [open_dataset(open_store(url), name).manifest for url in (bucket, str(tmp_path / "local"))]
    assert manifests[0].version == manifests[1].version
    assert manifests[0].base == raw

    own = {"PYTHONPATH": str(REPOSITORY)}
    tree = recipe(name, str(tmp_path / "local"), tmp_path / "cache-local", RAW[kind])
    code, said = run(tmp_path / "clean", tree, "--nproc", "2", variables=own)
    assert code == 0, said

    data = f"*raw-{name}/*"
    fault_proxy.set(Rule(Fault.FLIP, key=data, method="GET", at=300, times=2))
    fault_proxy.set(Rule(Fault.RESET, key=data, method="GET", at=200, times=2))
    fault_proxy.set(Rule(Fault.STATUS, key=data, status=503, share=0.4))
    student = {**s3.datasets_only, "AWS_ENDPOINT_URL": fault_proxy.endpoint, **own}
    tree = recipe(name, bucket, tmp_path / "cache", RAW[kind])
    code, said = run(tmp_path / "run", tree, "--nproc", "2", variables=student)
    assert code == 0, said
    assert {r.fault for r in fault_proxy.requests} >= {Fault.FLIP, Fault.RESET}
    assert not [r for r in fault_proxy.requests if r.method in ("PUT", "POST", "DELETE")]
    assert sample_ids(tmp_path / "run") == sample_ids(tmp_path / "clean")
    assert weights_of(tmp_path / "run") == weights_of(tmp_path / "clean")


@pytest.mark.parametrize("staging", ["stream", "full"])
def test_ranks_and_their_workers_fetch_every_shard_of_a_bucket_once_and_tell_what_it_cost(
    relay: Relay, s3: S3Server, fault_proxy: FaultProxy, tmp_path: Path, staging: str
) -> None:
    bucket, name = f"s3://{s3.bucket}", f"mds-{uuid.uuid4().hex}"
    upload(ADOPTED / "mds", f"{bucket}/datasets/raw-{name}")
    relay("data", "adopt", name, f"{bucket}/datasets/raw-{name}", "--store", bucket)
    shards = open_dataset(open_store(bucket), name).manifest.splits
    student = {**s3.datasets_only, "AWS_ENDPOINT_URL": fault_proxy.endpoint, "PYTHONPATH": str(REPOSITORY)}
    tree = recipe(name, bucket, tmp_path / "cache", {})
    tree["data"] |= {"workers": 2, "cache": {**tree["data"]["cache"], "staging": staging}}
    code, said = run(tmp_path / "run", tree, "--nproc", "2", variables=student)
    assert code == 0, said
    wanted = {f"datasets/raw-{name}/{e.key}": e.bytes for entries in shards.values() for e in entries}
    assert len(wanted) == 4
    assert fault_proxy.fetched(f"*raw-{name}/*.mds") == wanted
    told = [record["fetch"] or {} for record in records(tmp_path / "run", "step")]
    fetched = sum(figures.get("fetched_bytes", 0) for figures in told)
    total = sum(entry.bytes for entry in shards["train"])
    # What came after the last step had been agreed on is not told.
    assert fetched == total if staging == "full" else 0 < fetched <= total
    assert sum(figures.get("fetch_seconds", 0) for figures in told) > 0


def test_a_copy_to_a_folder_and_back_is_the_same_version_and_only_new_bytes_are_sent(
    relay: Relay, s3: S3Server, tmp_path: Path
) -> None:
    write_lines(tmp_path)
    remote, back = (f"s3://{s3.bucket}/{uuid.uuid4().hex}" for _ in range(2))
    relay(*build_words(remote, "--processes", "2"))
    upload(ADOPTED / "webdataset", f"{remote}/raw")
    relay("data", "adopt", "tars", f"{remote}/raw", "--store", remote)
    folder = str(tmp_path / "folder")
    for name in ("lines", "tars"):
        relay("data", "copy", name, "--store", remote, "--to", folder)
        said = relay("data", "copy", name, "--store", folder, "--to", back).stdout
        assert "was there 0 B" in " ".join(said.split())
        manifests = [open_dataset(open_store(url), name).manifest for url in (remote, folder, back)]
        assert len({manifest.version for manifest in manifests}) == 1
        said = relay("data", "copy", name, "--store", folder, "--to", back).stdout
        assert "copied 0 B" in " ".join(said.split())
        assert list_refs(open_store(back), name) == [1]
    for key in [entry.key for entry in open_store(remote).list("raw")]:
        open_store(remote).delete(key)  # a copy needs nothing of what it was copied from
    for store in (folder, back):
        for name in ("lines", "tars"):
            relay("data", "verify", name, "--store", store)
