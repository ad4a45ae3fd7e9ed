"""The run directory `runs/<id>/` in a store: who the run is and which attempts there were.

runs/<id>/run.json              written once: recipe, seed, dataset version, micro-batch
runs/<id>/attempts/0001.json    claimed create-only by each start
runs/<id>/journal/…             see `torchrelay.observe.journal`
runs/<id>/checkpoints/…         see `torchrelay.checkpoint`
runs/<id>/logs/…                output of the ranks, where the store is a local folder
"""

import json
import os
import socket
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from torchrelay.core.errors import AlreadyExistsError, NotFoundError, RecipeError, StoreError
from torchrelay.core.plugins import nearest
from torchrelay.store.base import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """What stays the same over all attempts of a run."""

    run: str
    """The run's id: its name, or `<name>-<n>` for the n-th fresh start."""
    name: str
    created_s: float
    recipe: dict[str, Any]
    recipe_hash: str
    dataset_version: str
    micro_batch: int
    """Samples of a forward pass, settled at the first start."""
    code: str
    environment: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRecord:
    """One start of a run."""

    attempt: int
    host: str
    pid: int
    started_s: float
    world: int
    process: str
    """Boot of the machine and start of the process, so that a recycled number is not taken for it."""


_GAP = 16
"""Ids without a run after which no further one is looked for."""


def run_prefix(run: str) -> str:
    """Key prefix of a run's objects."""
    return f"runs/{run}"


def read_run(store: Store, run: str) -> RunRecord:
    """The run's record; NotFoundError with the nearest existing id."""
    record = read_run_or_none(store, run)
    if record is None:
        known = list_runs(store)
        raise NotFoundError(
            f"there is no run {run!r} in {store.url}{nearest(run, known)}",
            hint=f"runs there: {', '.join(known[:20]) or 'none'}; --store chooses another place",
        )
    return record


def list_runs(store: Store) -> list[str]:
    """Ids of all runs, sorted."""
    keys = (entry.key.split("/") for entry in store.list("runs"))
    return sorted({parts[1] for parts in keys if len(parts) == 3 and parts[2] == "run.json"})


def newest_run(store: Store, name: str) -> str | None:
    """The id of the newest run called `name`, or None."""
    mine = [run for run, record in _known(store, name) if record.name == name]
    return mine[-1] if mine else None


def free_run(store: Store, name: str) -> str:
    """The id of a new run called `name`: its name, or the number after the newest."""
    known = [run for run, _ in _known(store, name)]
    ids = list(islice(_ids(name), len(known) + 2 * _GAP))
    return ids[ids.index(known[-1]) + 1] if known else ids[0]


def read_run_or_none(store: Store, run: str) -> RunRecord | None:
    """The run's record, or None when there is no such run."""
    try:
        content = store.get(f"{run_prefix(run)}/run.json")
    except NotFoundError:
        return None
    try:
        return RunRecord(**json.loads(content))
    except (ValueError, TypeError) as error:
        raise StoreError(f"{store.url}/{run_prefix(run)}/run.json is damaged: {error}") from error


def create_run(store: Store, record: RunRecord) -> None:
    """Write the run's record; StoreError when another process made the run meanwhile."""
    content = json.dumps(asdict(record), indent=1).encode()
    try:
        store.put(f"{run_prefix(record.run)}/run.json", content, if_absent=True)
    except AlreadyExistsError as error:
        raise StoreError(
            f"run {record.run!r} was started by another process at the same moment",
            hint="start again to resume it",
        ) from error


def list_attempts(store: Store, run: str) -> list[AttemptRecord]:
    """All attempts, oldest first."""
    entries = store.list(f"{run_prefix(run)}/attempts")
    return [AttemptRecord(**json.loads(store.get(entry.key))) for entry in entries]


def claim_attempt(store: Store, run: str, *, world: int, now_s: float) -> AttemptRecord:
    """Take the next attempt number; of two processes that start together one gets each number."""
    attempts = list_attempts(store, run)
    _refuse_if_alive(attempts, run)
    number = attempts[-1].attempt + 1 if attempts else 1
    record = AttemptRecord(
        attempt=number,
        host=socket.gethostname(),
        pid=os.getpid(),
        started_s=now_s,
        world=world,
        process=_identify(os.getpid()),
    )
    key = f"{run_prefix(run)}/attempts/{number:04d}.json"
    try:
        store.put(key, json.dumps(asdict(record)).encode(), if_absent=True)
    except AlreadyExistsError as error:
        raise StoreError(f"run {run!r} was started by another process at the same moment") from error
    return record


def _refuse_if_alive(attempts: list[AttemptRecord], run: str) -> None:
    if not attempts or attempts[-1].host != socket.gethostname():
        return
    last = attempts[-1]
    if last.pid != os.getpid() and _identify(last.pid) == last.process != "":
        raise RecipeError(
            f"run {run!r} is already running here as process {last.pid} (attempt {last.attempt})",
            hint="stop it first (it saves on SIGTERM), or start a new run with --fresh",
        )


def newest_attempt(store: Store, run: str) -> int:
    """Number of the newest attempt; 0 when there was none."""
    keys = [entry.key for entry in store.list(f"{run_prefix(run)}/attempts")]
    return int(keys[-1].rsplit("/", 1)[1].removesuffix(".json")) if keys else 0


def _identify(pid: int) -> str:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
    return f"{boot}/{status.rsplit(')', 1)[1].split()[19]}"


def _known(store: Store, name: str) -> Iterator[tuple[str, RunRecord]]:
    """Runs among the ids of `name`, in their order. Runs that were deleted leave gaps."""
    missing = 0
    for run in _ids(name):
        record = read_run_or_none(store, run)
        missing = missing + 1 if record is None else 0
        if record is not None:
            yield run, record
        if missing == _GAP:
            return


def _ids(name: str) -> Iterator[str]:
    yield name
    number = 2
    while True:
        yield f"{name}-{number}"
        number += 1
