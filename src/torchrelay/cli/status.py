"""`torchrelay status RUN`: where a run stands, from its journal alone."""

import json
from dataclasses import asdict

import typer

from torchrelay.cli.option import DEFAULT_STORE, JsonOption, RunArgument, StoreOption
from torchrelay.core.clock import system_clock
from torchrelay.core.units import format_count, format_seconds
from torchrelay.observe.journal import read_summary
from torchrelay.observe.rundir import read_run
from torchrelay.observe.status import RunStatus, describe_validation, summarise
from torchrelay.store.open import open_store


def command(run: RunArgument, store: StoreOption = DEFAULT_STORE, as_json: JsonOption = False) -> None:
    """States: starting, running, silent (no record for a minute), finished, stopped, failed."""
    opened = open_store(store, retry_s=20.0)
    read_run(opened, run)
    now_s = system_clock()
    status = summarise(run, read_summary(opened, run), now_s=now_s)
    if as_json:
        typer.echo(json.dumps(asdict(status), indent=1))
        return
    for label, value in _rows(status, now_s):
        typer.echo(f"{label:<14}{value}")


def _rows(status: RunStatus, now_s: float) -> list[tuple[str, str]]:
    rows = [("run", status.run), ("state", status.state)]
    if status.error:
        rows.append(("error", status.error))
    rows.append(("step", f"{status.step} of {status.steps}" if status.steps else str(status.step)))
    if status.loss is not None:
        rows.append(("loss", f"{status.loss:.4f} (mean of the last 20 steps)"))
    if status.validation_last is not None:
        rows.append(("validation", describe_validation(status)))
    rows.append((status.unit, format_count(status.tokens)))
    if status.tokens_per_second is not None:
        processes = "1 process" if status.world == 1 else f"{status.world} processes"
        speed = f"{format_count(status.tokens_per_second)} {status.unit}/s on {processes}"
        rows.append(("speed", speed))
    if status.eta_seconds is not None:
        rows.append(("left", format_seconds(status.eta_seconds)))
    rows.append(
        ("checkpoint", "none" if status.checkpoint_step is None else f"step {status.checkpoint_step}")
    )
    if status.model:
        rows.append(("model", status.model))
    if status.last_record_s:
        rows.append(("last word", f"{format_seconds(max(0.0, now_s - status.last_record_s))} ago"))
    return rows
