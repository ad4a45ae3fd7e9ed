"""Whether every process count reads the same batches, and whether anything is lost or read twice."""

import sys
from collections import Counter
from dataclasses import replace
from typing import NamedTuple

import meter
from setting import Setting
from started import Contender, Outcome
from table import table

STEPS = 20
_AGAIN = (2, 1, 4)
CUT = 40
"""Steps before the run is cut and goes on elsewhere."""
GRID = ((1, 2), (2, 0), (2, 2), (4, 0))
"""Ranks and workers per rank that are compared with one rank and none."""

Steps = list[list[int]]


class Tally(NamedTuple):
    """An epoch's account."""

    missing: int
    repeated: int

    def __str__(self) -> str:
        return f"{self.missing}/{self.repeated}"


def study_exact(setting: Setting) -> str:
    """A table over all loaders; the epoch has an odd number of samples."""
    rows = [_row(setting, contender) for contender in setting.contenders]
    title = (
        f"exactness, {setting.samples['tok']:,} samples, steps of 32: equal steps of {STEPS}, ranks x "
        "workers against 1 x 0;\nmissing/repeated samples of an epoch, then when a run of 2 ranks goes on"
        f" as 2, 1 or 4 after step {CUT}"
    )
    grid = [f"{ranks}x{workers}" for ranks, workers in GRID]
    return table(title, ["", *grid, "epoch 1x0", "epoch 2x0", "2 to 2", "2 to 1", "2 to 4"], rows)


def _row(setting: Setting, contender: Contender) -> list[str]:
    job = replace(setting.job(contender, "tok"), action="ids")
    first = replace(job, steps=STEPS)
    reference = _steps(setting, contender, first)
    equal = [
        _equal(reference, _steps(setting, contender, replace(first, world=ranks, workers=workers)))
        for ranks, workers in GRID
    ]
    epochs = [tally(_steps(setting, contender, replace(job, world=ranks)), job.samples) for ranks in (1, 2)]
    return [
        contender.name,
        *equal,
        *map(_shown, epochs),
        *(_resumed(setting, contender, job, to) for to in _AGAIN),
    ]


def _resumed(setting: Setting, contender: Contender, job: meter.Job, world: int) -> str:
    """Two ranks up to the cut, `world` ranks from there on."""
    state = setting.folder / "state.json"
    state.unlink(missing_ok=True)
    before = _steps(setting, contender, replace(job, world=2, steps=CUT, state=str(state)))
    if before is None or not state.exists() or state.read_text() == "null":
        return "-"
    after = _steps(setting, contender, replace(job, world=world, skip=CUT, state=str(state)))
    return "refused" if after is None else _shown(tally([*before, *after], job.samples))


def _shown(found: Tally | None) -> str:
    return "-" if found is None else str(found)


def _steps(setting: Setting, contender: Contender, job: meter.Job) -> Steps | None:
    """The samples of every step over all ranks, or None where a rank died."""
    outcomes = setting.run_all(contender, job)
    died = [f"rank {rank}: {outcome.why}" for rank, outcome in enumerate(outcomes) if outcome.result is None]
    if died:
        print(
            f"  {contender.name}, {job.world} ranks, {job.workers} workers, {died[0][-300:]}", file=sys.stderr
        )
    return merge(outcomes)


def merge(outcomes: list[Outcome]) -> Steps | None:
    """What all ranks read in every step; ranks may end at different steps."""
    ranks = [outcome.result["steps"] for outcome in outcomes if outcome.result is not None]
    if len(ranks) < len(outcomes):
        return None
    count = max(map(len, ranks), default=0)
    return [sorted(sum((rank[step] for rank in ranks if step < len(rank)), [])) for step in range(count)]


def _equal(reference: Steps | None, steps: Steps | None) -> str:
    if reference is None or steps is None:
        return "-"
    return str(sum(sorted(a) == sorted(b) for a, b in zip(reference, steps, strict=False)))


def tally(steps: Steps | None, samples: int) -> Tally | None:
    """Samples of the epoch that no step holds, and how often one came again."""
    if steps is None:
        return None
    seen = Counter(number for step in steps for number in step)
    return Tally(samples - len(seen), seen.total() - len(seen))
