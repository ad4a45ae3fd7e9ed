"""Runs of a few steps on real processes: a small dataset, a recipe to vary, and the program itself."""

import copy
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from torchrelay.checkpoint.digest import digest_checkpoint
from torchrelay.checkpoint.shelf import Shelf
from torchrelay.data.build.dataset_build import BuildRequest, build_dataset
from torchrelay.data.build.input import TextFiles
from torchrelay.data.loader import open_split
from torchrelay.observe.journal import counting_steps, read_journal
from torchrelay.recipe.load import load_recipe
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
        return self.popen(self.train_words(*settings, nproc=nproc))

    def popen(self, words: list[str]) -> subprocess.Popen[str]:
        return subprocess.Popen(
            words,
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

    def kind(self, kind: str, run: str = "t") -> list[dict[str, Any]]:
        return [record for record in self.records(run) if record["kind"] == kind]

    def planned_ids(self, *settings: str, steps: int) -> dict[int, list[int]]:
        """Ids of steps 1 … `steps` as the order alone says, without any training."""
        recipe = load_recipe(str(self.folder / "recipe.yaml"), settings)
        size = recipe.train.global_batch
        store = open_store(str(self.store))
        reader = open_split(recipe.data, store, "train", seed=recipe.run.seed, global_batch=size)
        ids = reader.locate(np.arange(size * steps)).located.sample_ids.reshape(steps, size)
        return {step: [i for i in of_step if i >= 0] for step, of_step in enumerate(ids.tolist(), start=1)}

    def attempts(self, run: str = "t") -> list[str]:
        return sorted(path.name for path in self.store.glob(f"runs/{run}/attempts/*"))

    def write_recipe(self, **sections: dict[str, Any] | None) -> None:
        """The usual recipe with sections laid over it; None in a section takes a key out."""
        tree = copy.deepcopy(RECIPE)
        for section, values in sections.items():
            tree[section] = {**tree.get(section, {}), **(values or {})}
            tree[section] = {key: value for key, value in tree[section].items() if value is not None}
        (self.folder / "recipe.yaml").write_text(yaml.safe_dump(tree))

    def copy_to(self, folder: Path) -> "Relay":
        """The same place once more: recipe, modules and everything that was trained."""
        shutil.copytree(self.folder, folder, symlinks=True)
        return Relay(folder)

    def living(self) -> list[int]:
        """Processes of this program that work on this place, the launcher too."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    words = (entry / "cmdline").read_bytes()
                except OSError:
                    continue
                if str(self.store).encode() in words and not is_gone(int(entry.name)):
                    found.append(int(entry.name))
        return found

    def wait_until_gone(self, within_s: float = 10.0) -> None:
        deadline = time.monotonic() + within_s
        while self.living():
            assert time.monotonic() < deadline, f"still there after {within_s} s: {self.living()}"
            time.sleep(0.02)

    def newest(self, run: str = "t") -> tuple[int, str, str]:
        """Step of the newest good checkpoint and the hashes of its weights and optimizer, read here."""
        shelf = Shelf(open_store(str(self.store)), run)
        commit = shelf.usable()[0]
        return commit.step, *digest_checkpoint(shelf, commit, shelf.read_manifest(commit))

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
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def values(records: list[dict[str, Any]], *keys: str) -> list[tuple[Any, ...]]:
    """Some fields of every record."""
    return [tuple(record[key] for key in keys) for record in records]


def assert_close(ours: list[float], theirs: list[float], rel: float = 1e-5) -> None:
    """Equally many, and equal within a relative tolerance, number by number."""
    assert len(ours) == len(theirs)
    worst = max((abs(a - b) / abs(b), i) for i, (a, b) in enumerate(zip(ours, theirs, strict=True)))
    assert worst[0] <= rel, (
        f"number {worst[1]} differs by {worst[0]:.2e}: {ours[worst[1]]} {theirs[worst[1]]}"
    )


@pytest.fixture(scope="session", autouse=True)
def temporary_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What the program leaves in the temporary folder (logs of refused starts) goes with the tests."""
    before = os.environ.get("TMPDIR")
    os.environ["TMPDIR"] = str(tmp_path_factory.mktemp("tmp"))
    yield
    os.environ.pop("TMPDIR")
    if before is not None:
        os.environ["TMPDIR"] = before


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
    (folder / "60.txt").write_text("one more document makes another version")
    build_dataset(open_store(str(folder / "store")), "other", request, progress=lambda *_: None)
    return folder / "store"


@pytest.fixture
def relay(tmp_path: Path, words_store: Path) -> Relay:
    """An empty place with the dataset linked in and `recipe.yaml`."""
    return make_relay(tmp_path, words_store)


@pytest.fixture(scope="module")
def new_relay(tmp_path_factory: pytest.TempPathFactory, words_store: Path) -> Callable[[str], Relay]:
    """Such a place for a whole module of tests, by name."""
    return lambda name: make_relay(tmp_path_factory.mktemp(name), words_store)


def make_relay(folder: Path, words_store: Path) -> Relay:
    (folder / "store").mkdir()
    (folder / "store" / "datasets").symlink_to(words_store / "datasets")
    relay = Relay(folder)
    relay.write_recipe()
    return relay
