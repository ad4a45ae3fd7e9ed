"""The records of a run's journal: what happened, one frozen value each.

Everything that people see later (console, status, reports) is read from these. A record's JSON
is one line with its `kind`, the Unix `time` in seconds, and its fields.
"""

import json
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol


class Record(Protocol):
    """A frozen dataclass with slots and a `kind`."""

    kind: ClassVar[str]
    __slots__: tuple[str, ...]


_encode = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


def to_line(record: Record, time_s: float) -> bytes:
    """The record as one line of JSON, newline included."""
    fields: dict[str, Any] = {"kind": record.kind, "time": round(time_s, 6)}
    for name in record.__slots__:
        fields[name] = getattr(record, name)
    return _encode(fields).encode() + b"\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRecord:
    """An attempt began; all processes are there and the model is built."""

    kind: ClassVar[str] = "start"
    attempt: int
    run: str
    world: int
    engine: str
    replicate: int
    shard: int
    device: str
    micro_batch: int
    accumulation: int
    """Most micro-batches that one process runs in a step."""
    parameters: int
    steps: int
    """Step at which the run ends."""
    unit: str
    """What `tokens` of the step records counts: tokens, or samples where the data has no tokens."""
    dataset_version: str
    recipe_hash: str
    code: str
    torch: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeRecord:
    """State was taken from a checkpoint; `step` is the last one that counts."""

    kind: ClassVar[str] = "resume"
    attempt: int
    step: int
    samples: int
    tokens: int
    checkpoint: str | None
    """Attempt folder of the checkpoint; None when none had been committed and training starts at 0."""
    reason: str
    saved_world: int | None
    world: int
    changes: list[str]
    """What differs from the saved run, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One optimizer update. `samples` and `tokens` count from the start of the run."""

    kind: ClassVar[str] = "step"
    step: int
    loss: float
    samples: int
    tokens: int
    seconds: float
    lr: float
    grad_norm: float
    world: int
    attempt: int
    data_seconds: float
    """Part of `seconds` that rank 0 waited for data."""
    fetch: dict[str, float] | None = None
    """What reading from a remote store has cost since the step before, over all processes: the counters
    of `data.figures.Figures` that are not zero; None where there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplesRecord:
    """The sample ids that one rank used in one step, in its order."""

    kind: ClassVar[str] = "samples"
    step: int
    rank: int
    attempt: int
    ids: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationRecord:
    """The validation split was measured after `step` updates."""

    kind: ClassVar[str] = "validation"
    step: int
    loss: float
    """Mean over all targets, in nats."""
    bits_per_byte: float | None
    """None where the data is not text."""
    samples: int
    targets: int
    seconds: float
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRecord:
    """What became of one save. `state`: committed, failed, deleted, quarantined."""

    kind: ClassVar[str] = "checkpoint"
    step: int
    state: str
    checkpoint: str
    bytes: int
    seconds: float
    """How long training stood still."""
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DataRecord:
    """Where a committed step is in the data."""

    kind: ClassVar[str] = "data"
    step: int
    slot: int
    """The slots below it are behind the run."""
    parts: list[dict[str, Any]]
    """Of each dataset of the run its name, the `samples` that were read of it (those left out by
    `data.skip` too), and the `epoch` that this is (from 0)."""
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRecord:
    """The final model was written."""

    kind: ClassVar[str] = "export"
    step: int
    where: str
    bytes: int
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRecord:
    """The attempt ended on purpose. `reason`: finished, asked to stop."""

    kind: ClassVar[str] = "stop"
    step: int
    reason: str
    exit_code: int
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorRecord:
    """The attempt failed."""

    kind: ClassVar[str] = "error"
    attempt: int
    rank: int
    host: str
    error: str
    message: str
    hint: str
    exit_code: int
    traceback: str
