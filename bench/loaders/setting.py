"""What all studies of a benchmark share: who takes part, how much is read, and where things lie."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import meter
from object_server import upload
from started import Contender, Outcome, run_one, run_ranks, shared_memory, sweep

OURS = "torchrelay"
NAMES = (OURS, "litdata", "mosaic", "webdataset", "datasets", "torchdata", "grain")
REMOTE = (OURS, "litdata", "mosaic", "webdataset", "datasets")
"""Those that read from an object store by themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One benchmark run."""

    folder: Path
    """Everything that is written lies in it; converted data is taken from it where it is there already."""
    contenders: tuple[Contender, ...]
    samples: dict[str, int]
    """By workload."""
    rounds: int
    limit_s: float
    """Longest time for one measurement."""
    store: dict[str, str] = field(default_factory=dict)
    """Environment of the S3 server; empty where there is none."""
    uploaded: set[str] = field(default_factory=set)

    def chosen(self, *, remote: bool) -> tuple[Contender, ...]:
        """Those that can read from there."""
        return tuple(c for c in self.contenders if c.name in REMOTE or not remote)

    def job(self, contender: Contender, workload: str, *, remote: bool = False) -> meter.Job:
        """Reading the whole workload on one rank; what was not converted or uploaded yet is now."""
        name = f"{contender.name}-{workload}"
        place = self.folder / "data" / f"{name}-{self.samples[workload]}"
        job = meter.Job(
            action="speed",
            workload=workload,
            samples=self.samples[workload],
            place=str(place),
            cache=str(self.folder / "cache" / name),
        )
        if not place.exists():
            self._convert(contender, job)
        if not remote:
            return replace(job, cache="")
        if name not in self.uploaded:
            upload(self.store["AWS_ENDPOINT_URL"], place, name)
            self.uploaded.add(name)
        return replace(job, place=f"s3://bench/{name}")

    def run(self, contender: Contender, job: meter.Job) -> Outcome:
        """Do a job on one rank, with an empty cache."""
        return self.run_all(contender, replace(job, world=1))[0]

    def run_all(self, contender: Contender, job: meter.Job) -> list[Outcome]:
        """Do a job on all of its ranks, with an empty cache."""
        for used in (job.cache, str(self.folder / "run")):
            if used:
                shutil.rmtree(used, ignore_errors=True)
                Path(used).mkdir(parents=True)
        contender = replace(contender, environment={**contender.environment, **self.store})
        before = shared_memory()
        outcomes = run_ranks(contender, job, self.folder / "run", limit_s=self.limit_s)
        sweep(before)
        return outcomes

    def interleaved(self, *, remote: bool) -> Iterator[tuple[int, Contender]]:
        """Every contender in turn, as often as there are rounds."""
        for number in range(self.rounds):
            for contender in self.chosen(remote=remote):
                yield number, contender

    def _convert(self, contender: Contender, job: meter.Job) -> None:
        part = Path(f"{job.place}.part")
        shutil.rmtree(part, ignore_errors=True)
        outcome = run_one(
            contender,
            replace(job, action="convert", place=str(part)),
            self.folder / "convert",
            limit_s=self.limit_s * 10,
        )
        if outcome.result is None:
            raise SystemExit(f"{contender.name} cannot write {job.workload}: {outcome.why}")
        part.rename(job.place)
