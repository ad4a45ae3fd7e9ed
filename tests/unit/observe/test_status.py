from dataclasses import asdict, replace
from typing import Any

import pytest

from tests.unit.observe.support import (
    CHECKPOINT,
    ERROR,
    RESUME,
    START,
    STOP,
    VALIDATION,
    samples_record,
    step_record,
)
from torchrelay.core.record import ExportRecord, Record
from torchrelay.observe.status import RunStatus, describe_validation, summarise


def written(*records: Record, from_s: float = 100.0) -> list[dict[str, Any]]:
    """Records as a journal gives them back, a second apart."""
    return [
        {"kind": record.kind, "time": from_s + second, **asdict(record)}  # type: ignore[call-overload]
        for second, record in enumerate(records)
    ]


def status(*records: Record, now_s: float | None = None) -> RunStatus:
    lines = written(*records)
    return summarise("t", lines, now_s=lines[-1]["time"] + 1 if now_s is None else now_s)


def test_a_run_without_records_is_starting() -> None:
    found = summarise("t", [], now_s=1e9)
    assert (found.state, found.step, found.steps, found.loss) == ("starting", 0, None, None)


def test_a_run_that_trains_says_how_far_how_fast_and_how_long() -> None:
    found = status(START, VALIDATION, *(step_record(step, loss=float(step)) for step in range(1, 41)))
    assert (found.state, found.step, found.steps, found.world, found.engine) == ("running", 40, 100, 2, "ddp")
    assert (found.samples, found.tokens) == (320, 3200)
    assert found.loss == pytest.approx(sum(range(21, 41)) / 20)
    assert found.tokens_per_second == pytest.approx(800)
    assert found.eta_seconds == pytest.approx(6)
    assert found.validation_first == found.validation_last == 5.5
    assert found.checkpoint_step is None


@pytest.mark.parametrize(
    ("last", "state"),
    [
        (STOP, "finished"),
        (replace(STOP, reason="asked to stop", exit_code=75), "stopped"),
        (ERROR, "failed"),
        (step_record(2), "running"),
    ],
)
def test_the_last_word_decides_the_state(last: Record, state: str) -> None:
    found = status(START, step_record(1), last, samples_record(1))
    assert found.state == state
    assert found.error == ("rank 1 was killed" if state == "failed" else None)
    assert (found.eta_seconds is not None) == (state == "running")


def test_a_run_that_says_nothing_for_a_minute_is_silent() -> None:
    assert status(START, step_record(1), now_s=161.0).state == "running"
    assert status(START, step_record(1), now_s=161.1).state == "silent"


def test_a_resumed_run_stands_where_it_resumed_not_where_it_had_been() -> None:
    records = written(START, step_record(50), CHECKPOINT) + written(
        replace(START, attempt=2, world=1), RESUME, from_s=200.0
    )
    found = summarise("t", records, now_s=203.0)
    assert (found.step, found.attempt, found.world, found.checkpoint_step) == (40, 2, 1, 40)
    assert found.state == "running"


def test_only_committed_checkpoints_count() -> None:
    found = status(START, CHECKPOINT, replace(CHECKPOINT, step=80, state="failed"))
    assert found.checkpoint_step == 40


def test_first_and_last_validation_and_the_model_are_named() -> None:
    found = status(
        START,
        VALIDATION,
        replace(VALIDATION, step=100, loss=2.5, bits_per_byte=None),
        STOP,
        ExportRecord(step=100, where="file://final", bytes=1, attempt=1),
    )
    assert (found.validation_first, found.validation_last) == (5.5, 2.5)
    assert (found.bits_per_byte_first, found.bits_per_byte) == (7.9, None)
    assert describe_validation(found) == "loss 5.5000 → 2.5000"
    text = replace(found, bits_per_byte=3.5)
    assert describe_validation(text) == "loss 5.5000 → 2.5000, bits per byte 7.9000 → 3.5000"
    assert found.model == "file://final"


def test_speed_needs_two_steps_that_follow_each_other() -> None:
    assert status(START, step_record(1)).tokens_per_second is None
    assert status(START, step_record(9), step_record(3)).tokens_per_second is None
