"""Where a run stands, summed up from its journal. Pure; reads records, writes nothing."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torchrelay.observe.journal import RECENT_STEPS

_STALE_S = 60.0
"""Seconds without a record after which a run that did not say it stopped is called silent."""

_ASIDE = ("samples", "export")
"""Kinds that say nothing about the state: an export follows the end of training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """The run in one look."""

    run: str
    unit: str
    """What `tokens` counts: tokens, or samples where the data has no tokens."""
    state: str
    """starting, running, silent (no record for a minute), finished, stopped, failed."""
    step: int
    steps: int | None
    """Step at which the run ends; None before the first start record."""
    samples: int
    tokens: int
    loss: float | None
    """Mean of the last 20 steps."""
    tokens_per_second: float | None
    """Over the last 20 steps."""
    eta_seconds: float | None
    validation_first: float | None
    validation_last: float | None
    bits_per_byte_first: float | None
    """Before the first step; None where the data is not text."""
    bits_per_byte: float | None
    """Newest."""
    world: int | None
    attempt: int
    engine: str | None
    checkpoint_step: int | None
    """Newest committed checkpoint."""
    last_record_s: float
    """Unix time."""
    error: str | None
    model: str | None
    """Where the exported model lies."""


def summarise(run: str, records: Iterable[dict[str, Any]], *, now_s: float) -> RunStatus:
    """The status at `now_s` (Unix seconds) after these records."""
    by_kind: dict[str, list[dict[str, Any]]] = {}
    last: dict[str, Any] = {"kind": "none", "time": 0.0}
    for record in records:
        by_kind.setdefault(record["kind"], []).append(record)
        if record["kind"] not in _ASIDE:
            last = record
    start = by_kind.get("start", [{}])[-1]
    recent = by_kind.get("step", [])[-RECENT_STEPS:]
    step = _reached(by_kind)
    rate = _rate(recent)
    validations = by_kind.get("validation", [])
    committed = [r["step"] for r in by_kind.get("checkpoint", []) if r["state"] == "committed"]
    state = _state(last, now_s)
    seconds = [r["seconds"] for r in recent]
    left = start.get("steps", step) - step
    return RunStatus(
        run=run,
        unit=start.get("unit", "tokens"),
        state=state,
        step=step,
        steps=start.get("steps"),
        samples=recent[-1]["samples"] if recent else 0,
        tokens=recent[-1]["tokens"] if recent else 0,
        loss=sum(r["loss"] for r in recent) / len(recent) if recent else None,
        tokens_per_second=rate,
        eta_seconds=left * sum(seconds) / len(seconds) if seconds and state == "running" else None,
        validation_first=validations[0]["loss"] if validations else None,
        validation_last=validations[-1]["loss"] if validations else None,
        bits_per_byte_first=validations[0]["bits_per_byte"] if validations else None,
        bits_per_byte=validations[-1]["bits_per_byte"] if validations else None,
        world=start.get("world"),
        attempt=start.get("attempt", 0),
        engine=start.get("engine"),
        checkpoint_step=committed[-1] if committed else None,
        last_record_s=last["time"],
        error=last["message"] if last["kind"] == "error" else None,
        model=by_kind["export"][-1]["where"] if "export" in by_kind else None,
    )


def describe_validation(status: RunStatus) -> str:
    """Validation loss before and after in words, in bits per byte too where the data is text."""
    text = f"loss {status.validation_first:.4f} → {status.validation_last:.4f}"
    if status.bits_per_byte is None:
        return text
    return f"{text}, bits per byte {status.bits_per_byte_first:.4f} → {status.bits_per_byte:.4f}"


def _reached(by_kind: dict[str, list[dict[str, Any]]]) -> int:
    marks = [r for kind in ("step", "resume", "stop") for r in by_kind.get(kind, [])]
    return int(max(marks, key=lambda r: float(r["time"]))["step"]) if marks else 0


def _rate(steps: list[dict[str, Any]]) -> float | None:
    if len(steps) < 2:
        return None
    seconds = sum(r["seconds"] for r in steps[1:])
    tokens = float(steps[-1]["tokens"] - steps[0]["tokens"])
    return tokens / seconds if seconds > 0 and tokens > 0 else None


def _state(last: dict[str, Any], now_s: float) -> str:
    if last["kind"] == "none":
        return "starting"
    if last["kind"] == "error":
        return "failed"
    if last["kind"] == "stop":
        return "finished" if last["reason"] == "finished" else "stopped"
    return "silent" if now_s - last["time"] > _STALE_S else "running"
