"""Records to write in tests; what does not matter to a test has a value already."""

from dataclasses import replace

from torchrelay.core.record import (
    CheckpointRecord,
    ErrorRecord,
    ResumeRecord,
    SamplesRecord,
    StartRecord,
    StepRecord,
    StopRecord,
    ValidationRecord,
)

START = StartRecord(
    attempt=1,
    run="t",
    world=2,
    engine="ddp",
    replicate=2,
    shard=1,
    device="cpu",
    micro_batch=4,
    accumulation=1,
    parameters=1_240_000,
    steps=100,
    unit="tokens",
    dataset_version="d" * 64,
    recipe_hash="r" * 64,
    code="0.1",
    torch="2.13.0",
)
RESUME = ResumeRecord(
    attempt=2,
    step=40,
    samples=320,
    tokens=3200,
    checkpoint="step-000000040/a-1-aa",
    reason="newest good checkpoint",
    saved_world=4,
    world=2,
    changes=["processes: 4 → 2"],
)
CHECKPOINT = CheckpointRecord(
    step=40,
    state="committed",
    checkpoint="step-000000040/a-1-aa",
    bytes=2**20,
    seconds=0.25,
    attempt=1,
    reason="",
)
VALIDATION = ValidationRecord(
    step=0, loss=5.5, bits_per_byte=7.9, samples=60, targets=600, seconds=0.5, attempt=1
)
ERROR = ErrorRecord(
    attempt=1,
    rank=1,
    host="h",
    error="RankLostError",
    message="rank 1 was killed",
    hint="",
    exit_code=1,
    traceback="",
)
STOP = StopRecord(step=100, reason="finished", exit_code=0, attempt=1)


def step_record(step: int, **fields: object) -> StepRecord:
    """Step `step` of 8 samples and 80 tokens that took a tenth of a second."""
    record = StepRecord(
        step=step,
        loss=4.0,
        samples=8 * step,
        tokens=80 * step,
        seconds=0.1,
        lr=1e-3,
        grad_norm=1.0,
        world=2,
        attempt=1,
        data_seconds=0.0,
    )
    return replace(record, **fields)


def samples_record(step: int, rank: int = 0) -> SamplesRecord:
    return SamplesRecord(step=step, rank=rank, attempt=1, ids=[step, rank])
