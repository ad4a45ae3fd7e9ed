"""`torchrelay journal RUN`: the records of a run, oldest first."""

import json
from typing import Any

import typer

from torchrelay.cli.option import DEFAULT_STORE, JsonOption, RunArgument, StoreOption
from torchrelay.core.clock import iso_time
from torchrelay.observe.journal import counting_steps, read_journal
from torchrelay.observe.rundir import read_run
from torchrelay.store.open import open_store


def command(
    run: RunArgument,
    kind: str | None = typer.Option(None, help="Only records of this kind: step, checkpoint, error, …"),
    counting: bool = typer.Option(
        False, help="Of the steps only those that count: not what a resume repeated."
    ),
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = False,
) -> None:
    """Kinds: start, resume, step, validation, checkpoint, export, samples, stop, error."""
    opened = open_store(store, retry_s=20.0)
    read_run(opened, run)
    records = counting_steps(read_journal(opened, run)) if counting else read_journal(opened, run)
    for record in records:
        if kind is None or record["kind"] == kind:
            typer.echo(json.dumps(record) if as_json else _line(record))


def _line(record: dict[str, Any]) -> str:
    values = "  ".join(
        f"{key} {value:.6g}" if isinstance(value, float) else f"{key} {value}"
        for key, value in record.items()
        if key not in ("kind", "time", "traceback") and value not in ("", None)
    )
    return f"{iso_time(record['time'])}  {record['kind']:<10}  {values}"
