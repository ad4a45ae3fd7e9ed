"""Loaders as processes: one for every measurement, watched from outside, and ended with all it started."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import meter
import psutil

TICK_S = 0.05
_KEPT_TAIL = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A loader that can be started."""

    name: str
    script: Path
    python: str
    environment: Mapping[str, str] = field(default_factory=dict)


class Outcome(NamedTuple):
    """What came of a job."""

    result: dict[str, Any] | None
    """What the script wrote, or None when it died or took too long."""
    peak_mb: float
    """Most memory of all its processes together, private and shared, mapped files left out."""
    why: str
    """The last words of a script that died."""


class Started:
    """A running script in a session of its own, so that all it starts can be found."""

    def __init__(self, contender: Contender, job: meter.Job, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.out = folder / "result.json"
        self._errors = folder / "errors.txt"
        for name in ("home", "tmp"):
            (folder / name).mkdir(exist_ok=True)
        words = [contender.python, str(contender.script), json.dumps(asdict(job)), str(self.out)]
        with self._errors.open("wb") as errors:
            self.process = subprocess.Popen(
                words,
                env=_environment(contender, folder),
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                start_new_session=True,
            )
        self.peak_mb = 0.0
        self._members: list[psutil.Process] = []
        self._looked_s = 0.0

    def members(self) -> list[psutil.Process]:
        """All live processes of the session."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(OSError, psutil.Error):
                if os.getsid(process.pid) == self.process.pid and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def watch(self) -> None:
        """Take a look at the memory; its processes are looked up anew twice a second."""
        if time.monotonic() - self._looked_s > 0.5:
            self._members, self._looked_s = self.members(), time.monotonic()
        self.peak_mb = max(self.peak_mb, sum(map(_held_kb, self._members)) / 1024)

    def finish(self) -> Outcome:
        """End what still runs, after the script has ended or its time is over."""
        for process in self.members():
            with contextlib.suppress(OSError):
                os.kill(process.pid, signal.SIGKILL)
        self.process.kill()
        self.process.wait()
        if self.out.exists() and self.process.returncode == 0:
            return Outcome(json.loads(self.out.read_text()), self.peak_mb, "")
        lines = [line for line in self._errors.read_text(errors="replace").splitlines() if line.strip()]
        return Outcome(None, self.peak_mb, " | ".join(lines[-_KEPT_TAIL:]) or "no answer in time")


def run_one(contender: Contender, job: meter.Job, folder: Path, *, limit_s: float) -> Outcome:
    """A job on one rank."""
    return run_ranks(contender, job, folder, limit_s=limit_s)[0]


def run_ranks(contender: Contender, job: meter.Job, folder: Path, *, limit_s: float) -> list[Outcome]:
    """A job on `job.world` ranks at once; when one dies the others are ended."""
    port = str(_free_port())
    ranks = []
    for rank in range(job.world):
        peer = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(job.world)}
        peer |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(job.world)}
        peer |= {"GLOBAL_RANK": str(rank), "NNODES": "1"}
        environment = {**contender.environment, **(peer if job.world > 1 else {})}
        contending = replace(contender, environment=environment)
        ranks.append(Started(contending, replace(job, rank=rank), folder / f"rank-{rank}"))
    deadline_s = time.monotonic() + limit_s
    while any(one.process.poll() is None for one in ranks):
        failed = any(one.process.poll() not in (None, 0) for one in ranks)
        if failed or time.monotonic() > deadline_s:
            break
        for one in ranks:
            one.watch()
        time.sleep(TICK_S)
    return [one.finish() for one in ranks]


def shared_memory() -> set[str]:
    """Names in /dev/shm."""
    return set(os.listdir("/dev/shm"))


def sweep(before: set[str]) -> None:
    """Remove what has come to /dev/shm since and no living process has open: a later run would find it."""
    used = set()
    for process in psutil.process_iter():
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{process.pid}/maps").read_text().splitlines()
            used |= {line.rpartition("/")[2] for line in lines if "/dev/shm/" in line}
    for name in shared_memory() - before - used:
        with contextlib.suppress(OSError):
            Path("/dev/shm", name).unlink()


def _environment(contender: Contender, folder: Path) -> dict[str, str]:
    """Folders of its own, one thread for arithmetic, and no question asked of any hub or metadata service."""
    keep = ("PATH", "LANG", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")
    return {
        **{name: os.environ[name] for name in keep if name in os.environ},
        "HOME": str(folder / "home"),
        "TMPDIR": str(folder / "tmp"),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "LITDATA_DISABLE_VERSION_CHECK": "1",
        "AWS_EC2_METADATA_DISABLED": "true",
        **contender.environment,
    }


def _held_kb(process: psutil.Process) -> int:
    with contextlib.suppress(OSError, ValueError):
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith(("RssAnon", "RssShmem")))
    return 0


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
