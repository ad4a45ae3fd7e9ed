"""A build needs memory for the units of work that are under way, whatever the size of its input."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.ranks.conftest import DEADLINE_S, Relay

pytestmark = pytest.mark.ranks

MIB = 2**20
MEASURED = """\
import sys, threading
from torchrelay.cli.app import main
seen, ended = [], threading.Event()
def watch():
    while not ended.wait(0.002):  # what is mapped from a file can be dropped at any time and does not count
        lines = open("/proc/self/status").read().splitlines()
        seen.append(next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")))
threading.Thread(target=watch, daemon=True).start()
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
ended.set()
print(max(seen) * 1024)
"""


def write_text(folder: Path, size: int) -> list[str]:
    line = json.dumps({"text": "a line of some words and numbers 0123456789 " * 20}) + "\n"
    with (folder / "lines.jsonl").open("w") as file:
        for number in range(size // len(line)):
            file.write(line.replace("line", f"line{number}", 1))
    return ["--jsonl", "lines.jsonl", "--field", "text"]


def write_arrays(folder: Path, size: int) -> list[str]:
    rows = np.lib.format.open_memmap(
        str(folder / "rows.npy"), mode="w+", dtype=np.float32, shape=(size // 16384, 4096)
    )
    rows[:] = np.arange(len(rows))[:, None]
    return ["--npy", "rows.npy"]


def peak_bytes(relay: Relay, store: str, words: list[str]) -> int:
    sizes = ["--shard-size", "2MiB", "--unit-size", "2MiB", "--processes", "1"]
    build = ["data", "build", "d", *words, *sizes, "--store", store]
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, *build],
        cwd=relay.folder, capture_output=True, text=True, timeout=DEADLINE_S, check=True,
    )  # fmt: skip
    return int(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("write", [write_text, write_arrays], ids=["text", "arrays"])
def test_twelve_times_the_input_needs_no_more_memory(
    relay: Relay, write: Callable[[Path, int], list[str]]
) -> None:
    small, large = (peak_bytes(relay, f"{size}", write(relay.folder, size * MIB)) / MIB for size in (6, 72))
    assert large - small < 8
