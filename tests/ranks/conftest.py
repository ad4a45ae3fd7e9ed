"""Runs of a few steps on real processes: a small dataset, a recipe to vary, and the program itself."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from torchrelay.data.build import BuildRequest, build_dataset
from torchrelay.data.input import TextFiles
from torchrelay.observe.journal import counting_steps, read_journal
from torchrelay.store.open import open_store

DEADLINE_S = 120
"""Every command of a test ends within this time or the test fails."""

RECIPE: dict[str, Any] = {
    "run": {"name": "t", "seed": 7},
    "model": {"decoder": {"layers": 2, "width": 24, "heads": 3}},
    "data": {"dataset": "words", "sequence_length": 16},
    "train": {
        "steps": 40,
        "global_batch": 12,
        "optimizer": {"lr": 3e-3},
        "schedule": {"kind": "cosine", "warmup": 5},
    },
    "checkpoint": {"every": 5},
    "observe": {"sample_log": True},
}


@dataclass
class Relay:
    """The program in a folder of its own."""

    folder: Path

    @property
    def store(self) -> Path:
        return self.folder / "store"

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "torchrelay", *words]

    def train_words(self, *settings: str, nproc: int = 1, fresh: bool = False) -> list[str]:
        pairs = [word for setting in settings for word in ("--set", setting)]
        more = ["--fresh"] if fresh else []
        return self.command(
            "train", "recipe.yaml", "--nproc", str(nproc), "--store", str(self.store), *pairs, *more
        )

    def run(self, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            self.command(*words), cwd=self.folder, capture_output=True, text=True, timeout=DEADLINE_S
        )
        assert done.returncode == code, (
            f"exit {done.returncode}, expected {code}\n{done.stdout}\n{done.stderr}\n{self.logs()}"
        )
        return done

    def train(
        self, *settings: str, nproc: int = 1, code: int = 0, fresh: bool = False
    ) -> subprocess.CompletedProcess[str]:
        words = self.train_words(*settings, nproc=nproc, fresh=fresh)
        return self.run(*words[3:], code=code)

    def start(self, *settings: str, nproc: int = 1) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.train_words(*settings, nproc=nproc),
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def logs(self) -> str:
        files = sorted(self.store.glob("runs/*/logs/*/*.log"))
        return "\n".join(f"== {file}\n{file.read_text()[-3000:]}" for file in files[-4:])

    def records(self, run: str = "t") -> list[dict[str, Any]]:
        return list(read_journal(open_store(str(self.store)), run))

    def steps(self, run: str = "t") -> list[dict[str, Any]]:
        return counting_steps(iter(self.records(run)))

    def losses(self, run: str = "t") -> list[float]:
        return [record["loss"] for record in self.steps(run)]

    def sample_ids(self, run: str = "t") -> dict[int, list[int]]:
        """Ids of every step over all ranks, the last attempt that reached the step, in slot order."""
        newest: dict[int, int] = {}
        parts: dict[tuple[int, int], dict[int, list[int]]] = {}
        for record in self.records(run):
            if record["kind"] == "samples":
                newest[record["step"]] = max(newest.get(record["step"], 0), record["attempt"])
                parts.setdefault((record["step"], record["attempt"]), {})[record["rank"]] = record["ids"]
        return {
            step: [i for _, ids in sorted(parts[step, attempt].items()) for i in ids]
            for step, attempt in sorted(newest.items())
        }

    def checkpoint(self, run: str = "t") -> dict[str, Any]:
        done = self.run("checkpoint", "show", run, "--store", str(self.store), "--json")
        result: dict[str, Any] = json.loads(done.stdout)
        return result

    def wait_for_step(self, process: subprocess.Popen[str], step: int) -> int:
        """Until the run has recorded `step`; returns the last step seen."""
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            assert process.poll() is None, f"ended early\n{process.communicate()}\n{self.logs()}"
            last = max((r["step"] for r in self._journal_now() if r["kind"] == "step"), default=0)
            if last >= step:
                return last
            time.sleep(0.005)
        raise AssertionError(f"step {step} was not reached within {DEADLINE_S} s\n{self.logs()}")

    def _journal_now(self) -> Iterator[dict[str, Any]]:
        files = sorted(self.store.glob("runs/t/journal/attempt-????.jsonl"))
        for line in files[-1].read_text().splitlines() if files else []:
            try:
                yield json.loads(line)
            except ValueError:
                return


def rank_pids(launcher: subprocess.Popen[str]) -> list[int]:
    """Processes of the ranks, by rank."""
    listing = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(launcher.pid), "--sort", "start_time,pid"],
        capture_output=True, text=True, check=True, timeout=10,
    )  # fmt: skip
    return [int(line) for line in listing.stdout.split()]


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rsplit(")", 1)[1].split()[0] == "Z"


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="session")
def words_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the dataset `words`: 60 documents in several small shards."""
    folder = tmp_path_factory.mktemp("words")
    for number in range(60):
        text = " ".join(f"w{(number * 7 + k * k) % 53}" for k in range(60 + number))
        (folder / f"{number:02d}.txt").write_text(text)
    request = BuildRequest(
        documents=TextFiles((f"{folder}/*.txt",)), tokenizer="bytes", validation=0.2, shard_bytes=4096
    )
    build_dataset(open_store(str(folder / "store")), "words", request, progress=lambda *_: None)
    return folder / "store"


@pytest.fixture
def relay(tmp_path: Path, words_store: Path) -> Relay:
    """An empty place with the dataset linked in and `recipe.yaml`."""
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "datasets").symlink_to(words_store / "datasets")
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(RECIPE))
    return Relay(tmp_path)
