"""How long it takes to go on at 90 % of a long epoch, and what is left behind after kill -9."""

import os
import shutil
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

from setting import OURS, Setting
from started import Contender, Outcome, Started, shared_memory, sweep
from table import middle, short, spread, table

HELD_S = 60.0
SETTLE_S = 5.0
"""How long what is left behind may take to go away by itself."""
VIRTUAL = 10_000_000_000
ONE_LOCK = "ledger.lock"
"""Our cache has one lock for good, which the kernel frees when its holder dies."""


def study_resume(setting: Setting) -> str:
    """A table: seconds from making the loader to its first batch, and memory beyond what it had."""
    chosen = [c for c in setting.contenders if c.name != "webdataset"]
    outcomes: dict[str, list[Outcome]] = {c.name: [] for c in chosen}
    for _ in range(setting.rounds):
        for contender in chosen:
            job = replace(setting.job(contender, "small"), action="deep", lean=contender.name == "datasets")
            outcomes[contender.name].append(setting.run(contender, job))
    rows = [_resume_row(name, found) for name, found in outcomes.items()]
    ours = next(c for c in setting.contenders if c.name == OURS)
    job = replace(setting.job(ours, "small"), action="virtual", samples=VIRTUAL)
    virtual = [setting.run(ours, job) for _ in range(setting.rounds)]
    rows.append(_resume_row(f"{OURS}, {VIRTUAL / 1e9:.0f} billion", virtual))
    title = (
        f"going on at 90 % of an epoch of {setting.samples['small']:,} samples (datasets: without shuffle)"
    )
    return table(title, ["", "first batch s", "", "grown MB", "died"], rows)


def _resume_row(name: str, outcomes: list[Outcome]) -> list[str]:
    results = [outcome.result for outcome in outcomes if outcome.result is not None]
    seconds = [result["first_s"] for result in results]
    grown = middle([result["grown_mb"] for result in results])
    return [name, short(middle(seconds)), spread(seconds), short(grown), f"{len(outcomes) - len(results)}"]


def study_leftovers(setting: Setting) -> str:
    """A table: two workers reading from the S3 server (else the disk) are killed; what is still there."""
    rows = [_leftover_row(setting, contender) for contender in setting.contenders]
    title = f"left {SETTLE_S:.0f} s after kill -9 of the main process, 2 workers (ours: threads)"
    columns = ["", "processes", "/dev/shm", "temp files", "dead files in cache", "starts again"]
    return table(title, columns, rows)


def _leftover_row(setting: Setting, contender: Contender) -> list[str]:
    remote = bool(setting.store) and contender in setting.chosen(remote=True)
    job = replace(setting.job(contender, "tok", remote=remote), action="hold", workers=2)
    contender = replace(contender, environment={**contender.environment, **setting.store})
    folder = setting.folder / "held"
    for used in (folder, Path(job.cache or folder)):
        shutil.rmtree(used, ignore_errors=True)
        used.mkdir(parents=True, exist_ok=True)
    before = shared_memory()
    first = Started(contender, job, folder / "first")
    if not _await(first):
        why = first.finish().why
        sweep(before)
        print(f"  {contender.name} did not come to read: {why[-300:]}", file=sys.stderr)
        return [contender.name, "-", "-", "-", "-", "-"]
    os.kill(first.process.pid, signal.SIGKILL)
    first.process.wait()
    time.sleep(SETTLE_S)
    left = [process for process in first.members() if process.pid != first.process.pid]
    shm = shared_memory() - before
    temporary = sum(path.is_file() for path in (folder / "first" / "tmp").rglob("*"))
    dead = _dead_files(Path(job.cache)) if job.cache else None
    again = Started(contender, job, folder / "again")
    started = "yes" if _await(again) else "no"
    first.finish()
    again.finish()
    sweep(before)
    return [contender.name, str(len(left)), str(len(shm)), str(temporary), _shown(dead), started]


def _await(one: Started) -> bool:
    """Whether it says in time that it has read its first batches."""
    deadline_s = time.monotonic() + HELD_S
    while time.monotonic() < deadline_s and one.process.poll() is None:
        if one.out.exists():
            return True
        time.sleep(0.02)
    return False


def _dead_files(cache: Path) -> int:
    """Parts of files, and locks and counts that belong to one file or one process."""
    words = ("tmp", "lock", ".cnt", "part")
    found = [path.name for path in cache.rglob("*") if path.is_file() and path.name != ONE_LOCK]
    return sum(any(word in name for word in words) for name in found)


def _shown(count: int | None) -> str:
    return "-" if count is None else str(count)
