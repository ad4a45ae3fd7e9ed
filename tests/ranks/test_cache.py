"""One cache folder, several processes, and everything that may happen to them: kill -9, full disks."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tests.unit.data.cache.support import content, entry_of, held_bytes, leftovers, shard_files
from torchrelay.data.manifest import ShardEntry

SIZE = 100_000
SHARDS = 30
DEADLINE_S = 60.0
ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.ranks


class Node:
    """A store, a cache folder, and the processes that were started on it."""

    def __init__(self, folder: Path, cache: Path) -> None:
        self.store = folder / "store"
        self.root = cache
        self.folder = folder
        self.entries = [entry_of(content(number, SIZE), f"s{number}") for number in range(SHARDS)]
        self.store.mkdir()
        for number in range(SHARDS):
            (self.store / f"s{number}").write_bytes(content(number, SIZE))
        (self.store / "entries.json").write_text(json.dumps([plain(entry) for entry in self.entries]))
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, *, budget: int = SHARDS, **spec: Any) -> subprocess.Popen[str]:
        full = {"store": str(self.store), "root": str(self.root), "budget": budget * SIZE, **spec}
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.ranks.cache_reader", json.dumps(full)],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.processes.append(process)
        return process

    def run(self, **spec: Any) -> dict[str, Any]:
        return finish(self.start(**spec))


def plain(entry: ShardEntry) -> dict[str, Any]:
    return asdict(entry)


def finish(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, err[-3000:]
    result: dict[str, Any] = json.loads(out)
    return result


def wait_until(is_so: Callable[[], bool], process: subprocess.Popen[str] | None = None) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not is_so():
        assert time.monotonic() < deadline, "it did not come about in time"
        assert process is None or process.poll() is None, process.communicate()
        time.sleep(0.002)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path, tmp_path / "cache")
    yield node
    for process in node.processes:
        process.kill()
        process.communicate()


def test_four_processes_fetch_every_shard_once(node: Node) -> None:
    go = node.folder / "go"
    processes = [node.start(go=str(go), delay_s=0.005) for _ in range(4)]
    go.touch()
    results = [finish(process) for process in processes]
    assert sum(result["gets"] for result in results) == SHARDS
    assert sum(result["hits"] + result["misses"] for result in results) == 4 * SHARDS
    assert leftovers(node.root) == [] and len(shard_files(node.root)) == SHARDS


@pytest.mark.parametrize(
    ("place", "at"),
    [
        ("fetch", 5),
        ("before rename", 7),
        ("after rename", 7),
        ("before eviction", 3),
        ("after eviction", 3),
    ],
)
def test_kill_9_leaves_nothing_and_stops_nobody(node: Node, place: str, at: int) -> None:
    victim = node.start(budget=12, die=place, at=at)
    assert victim.wait(DEADLINE_S) == -signal.SIGKILL
    here = len(shard_files(node.root))
    assert here == {"fetch": 4, "before rename": 6, "after rename": 7, "before eviction": 12}.get(place, 11)
    assert held_bytes(node.root) <= 12 * SIZE
    result = node.run(budget=12)
    assert result["in_memory"] == 0 and result["refetched"] == 0
    assert leftovers(node.root) == [] and len(shard_files(node.root)) == 12


@pytest.mark.parametrize("place", ["fetch", "before rename", "after eviction"])
def test_kill_9_of_a_run_with_its_planner_leaves_nothing(node: Node, place: str) -> None:
    victim = node.start(budget=13, order=1, epochs=2, die=place, at=20)
    assert victim.wait(DEADLINE_S) == -signal.SIGKILL
    assert leftovers(node.root) != []
    result = node.run(budget=13, order=2, epochs=1)
    assert result["in_memory"] == 0
    assert leftovers(node.root) == []


def test_the_death_of_who_fetches_lets_the_next_one_fetch(node: Node) -> None:
    mark = node.folder / "hanging"
    hanging = node.start(hang=str(mark))
    wait_until(mark.exists, hanging)
    waiting = node.start()
    wait_until(lambda: len(list(node.root.glob("incoming/*"))) == 1, waiting)
    with pytest.raises(subprocess.TimeoutExpired):
        waiting.wait(1.5)
    assert shard_files(node.root) == []
    os.kill(hanging.pid, signal.SIGKILL)
    assert finish(waiting)["gets"] == SHARDS
    assert leftovers(node.root) == []


def test_two_runs_with_orders_of_their_own_never_exceed_a_small_cache(node: Node) -> None:
    budget = 24
    runs = [node.start(budget=budget, order=seed, epochs=2, step_s=0.002) for seed in (1, 2)]
    samples = []
    while any(run.poll() is None for run in runs):
        samples.append(held_bytes(node.root))
        time.sleep(0.001)
    results = [finish(run) for run in runs]
    assert len(samples) > 50 and max(samples) <= budget * SIZE
    assert max(samples) > (budget - 3) * SIZE
    assert sum(result["gets"] for result in results) <= 2 * 2 * 1.1 * SHARDS
    assert all(result["in_memory"] == 0 for result in results), results
    assert leftovers(node.root) == []


def test_a_folder_that_is_deleted_while_a_run_reads_costs_only_time(node: Node) -> None:
    beat = node.folder / "beat"
    run = node.start(order=1, epochs=3, step_s=0.003, beat=str(beat))
    wait_until(beat.exists, run)
    for _ in range(3):
        wait_until(lambda: len(shard_files(node.root)) > 5, run)
        shutil.rmtree(node.root, ignore_errors=True)
    result = finish(run)
    assert result["gets"] > SHARDS and shard_files(node.root) != []


def test_a_flipped_byte_on_disk_is_found_by_the_next_process(node: Node) -> None:
    node.run()
    path = shard_files(node.root)[11]
    good = path.read_bytes()
    path.write_bytes(good[:500] + bytes([good[500] ^ 1]) + good[501:])
    result = node.run()
    assert (result["refetched"], result["gets"]) == (1, 1)
    assert path.read_bytes() == good


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 2 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={20 * SIZE}", "tmpfs", str(disk)],
        capture_output=True, timeout=DEADLINE_S,
    )  # fmt: skip
    if mounted.returncode != 0:
        pytest.skip(f"a small disk can be mounted by root only: {mounted.stderr.decode().strip()}")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True, timeout=DEADLINE_S)


def test_a_full_disk_is_gone_past_and_used_again_when_it_has_room(tmp_path: Path, small_disk: Path) -> None:
    node = Node(tmp_path, small_disk / "cache")
    beat, ballast = tmp_path / "beat", small_disk / "ballast"
    run = node.start(order=1, epochs=6, step_s=0.004, beat=str(beat))
    try:
        wait_until(lambda: len(shard_files(node.root)) > 8 and beat.exists(), run)
        fill_disk(ballast, small_disk)
        shutil.rmtree(node.root, ignore_errors=True)  # nothing of ours is left that could make room
        seen = int(beat.read_text() or 0)

        def is_an_epoch_later() -> bool:
            fill_disk(ballast, small_disk)  # what the run closes becomes free only now
            return int(beat.read_text() or 0) > seen + SHARDS * 40

        wait_until(is_an_epoch_later, run)
        assert len(shard_files(node.root)) <= 8
        ballast.unlink()
        wait_until(lambda: len(shard_files(node.root)) > 8, run)
        result = finish(run)
    finally:
        run.kill()
        run.communicate()
    assert result["in_memory"] >= SHARDS // 2
    assert any("No space left" in warning or "in use" in warning for warning in result["warnings"])


def fill_disk(ballast: Path, disk: Path) -> None:
    with ballast.open("ab", buffering=0) as file:
        while (status := os.statvfs(disk)).f_bavail:
            try:
                file.write(b"b" * min(2**16, status.f_bavail * status.f_frsize))
            except OSError:
                return
