"""What every loader script shares: the job it is given, and the reading and measuring of it.

A script offers four functions and calls `run`; the bench starts it once for every measurement:

    python bench/loaders/run_x.py '{"action": "speed", "workload": "tok", ...}' result.json

Only the standard library, NumPy and, for several ranks, torch are used here, so that it works in
any environment that holds one of the peers.
"""

import itertools
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One thing to do, in one process. The field names are the keys of the JSON."""

    action: str
    """convert, speed, ids, deep, virtual or hold."""
    workload: str
    """tok, img or small; see `workload.py`."""
    samples: int
    place: str
    """Folder or s3:// URL of the converted data."""
    cache: str
    """Folder for what a loader keeps of a remote place."""
    workers: int = 0
    batch: int = 32
    """Samples of a step, all ranks together."""
    rank: int = 0
    world: int = 1
    steps: int | None = None
    """Steps to take; None is to the end of the epoch."""
    skip: int = 0
    """Steps that another run has taken before the state was kept."""
    state: str | None = None
    """File that holds, or gets, the state of the loader."""
    lean: bool = False
    """Whether to shuffle less, where a loader cannot resume when it shuffles."""

    @property
    def share(self) -> int:
        """Samples of a step that this rank reads."""
        return self.batch // self.world

    @property
    def is_remote(self) -> bool:
        """Whether the data lies in an object store."""
        return self.place.startswith("s3://")


class Opened(Protocol):
    """A loader that is ready to read."""

    def epoch(self) -> Iterator[Any]:
        """The batches of one epoch, from where the loader stands."""

    def ids(self, batch: Any) -> list[int]:
        """The numbers of the samples in a batch."""

    def size(self, batch: Any) -> int:
        """How many samples are in a batch."""

    def state(self) -> Any:
        """What has to be kept to go on after the batches taken so far; None when there is no such thing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loader:
    """What a script offers."""

    packages: tuple[str, ...]
    """Distributions whose versions are shown."""
    convert: Callable[[Job], None]
    """Write the workload in the loader's own format to `job.place`."""
    open: Callable[[Job, Any], Opened]
    """Make the loader; the second argument is a state that was kept, or None."""
    deep: Callable[[Job, int], Any] | None = None
    """The state after so many samples of an epoch, as the loader would have kept it."""
    prepare: Callable[[], object] = lambda: None
    """Import what is needed, so that it is not measured."""


def run(loader: Loader) -> None:
    """Do the job of the command line and write what came out as JSON."""
    job = Job(**json.loads(sys.argv[1]))
    if job.action == "versions":
        result = {"versions": _versions(loader)}
    else:
        loader.prepare()
        if job.world > 1:
            _join(job)
        result = _ACTIONS[job.action](loader, job)
    Path(sys.argv[2]).write_text(json.dumps(result))
    sys.stdout.flush()
    os._exit(0)  # what a loader leaves running is not waited for; the bench counts it


def _versions(loader: Loader) -> dict[str, str]:
    found = {}
    for name in loader.packages:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            return {}
    return found


def _join(job: Job) -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo", rank=job.rank, world_size=job.world)


def _convert(loader: Loader, job: Job) -> dict[str, Any]:
    begun = time.perf_counter()
    loader.convert(job)
    return {"seconds": time.perf_counter() - begun}


def _speed(loader: Loader, job: Job) -> dict[str, Any]:
    """Two epochs. The rate leaves the first batch out, which has a column of its own."""
    cpu, begun = _cpu_s(), time.perf_counter()
    opened = loader.open(job, None)
    epochs = [_time_epoch(opened, begun), _time_epoch(opened, time.perf_counter())]
    ended = time.perf_counter()
    del opened
    return {"epochs": epochs, "seconds": ended - begun, "cpu_s": _cpu_s() - cpu}


def _time_epoch(opened: Opened, begun: float) -> dict[str, float]:
    batches = opened.epoch()
    first = opened.size(next(batches))
    reached = ended = time.perf_counter()
    count = 0
    for batch in batches:
        count += opened.size(batch)
        ended = time.perf_counter()  # of the last batch: what a loader does to end is not its speed
    return {
        "first_s": reached - begun,
        "rate": count / max(ended - reached, 1e-9),
        "wall_s": ended - begun,
        "samples": first + count,
    }


def _ids(loader: Loader, job: Job) -> dict[str, Any]:
    """The samples of every step, going on from the state where there is one."""
    kept = json.loads(Path(job.state).read_text()) if job.state and job.skip else None
    opened = loader.open(job, kept)
    steps = [opened.ids(batch) for batch in itertools.islice(opened.epoch(), job.steps)]
    if job.state and not job.skip and job.rank == 0:
        Path(job.state).write_text(json.dumps(opened.state()))
    return {"steps": steps}


def _deep(loader: Loader, job: Job) -> dict[str, Any]:
    """Go on at 90 % of an epoch: seconds to the first batch, and what it takes of memory."""
    if loader.deep is None:
        return {"missing": True}
    state = loader.deep(job, job.samples * 9 // 10 // job.batch * job.batch)
    before, begun = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    opened = loader.open(job, state)
    ids = opened.ids(next(opened.epoch()))
    seconds = time.perf_counter() - begun
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"first_s": seconds, "grown_mb": (peak - before) / 1024, "ids": ids}


def _hold(loader: Loader, job: Job) -> dict[str, Any]:
    """Read a few batches, say so, and wait to be killed."""
    opened = loader.open(job, None)
    batches = opened.epoch()
    for batch in itertools.islice(batches, 5):
        opened.size(batch)
    Path(sys.argv[2]).write_text("{}")
    while True:
        time.sleep(1)


_ACTIONS = {"convert": _convert, "speed": _speed, "ids": _ids, "deep": _deep, "virtual": _deep, "hold": _hold}


def _cpu_s() -> float:
    """CPU seconds of this process and of its children that have ended."""
    return sum(
        used.ru_utime + used.ru_stime
        for used in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def chunked(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """Lists of `size` items, the last perhaps shorter."""
    iterator = iter(items)
    while chunk := list(itertools.islice(iterator, size)):
        yield chunk
