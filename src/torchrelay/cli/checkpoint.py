"""`torchrelay checkpoint list|show|verify RUN`."""

import json
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from torchrelay.checkpoint.shelf import Shelf, Shelved
from torchrelay.cli.option import DEFAULT_STORE, JsonOption, RunArgument, StoreOption
from torchrelay.core.clock import iso_time
from torchrelay.core.errors import DamagedError, ExitCode, NotFoundError
from torchrelay.core.units import format_bytes
from torchrelay.observe.rundir import read_run
from torchrelay.store.open import open_store

app = typer.Typer(no_args_is_help=True)
_STEP = typer.Option(None, "--step", help="The checkpoint of this step. Default: the newest good one.")


@app.command("list")
def list_(run: RunArgument, store: StoreOption = DEFAULT_STORE, as_json: JsonOption = False) -> None:
    """Every committed checkpoint, oldest first."""
    shelved = _open(run, store).all()
    if as_json:
        typer.echo(json.dumps([_facts(s) for s in shelved], indent=1))
        return
    if not shelved:
        typer.echo(f"run {run} has no checkpoint yet")
        return
    table = Table(box=None, pad_edge=False)
    for column in ("step", "saved", "bytes", "processes", "attempt", "state"):
        table.add_column(
            column, justify="right" if column in ("step", "bytes") else "left", no_wrap=column != "state"
        )
    for s in shelved:
        c = s.commit
        state = "good" if s.quarantine_reason is None else f"quarantined: {s.quarantine_reason}"
        saved = iso_time(c.created_s)[:19].replace("T", " ")
        table.add_row(str(c.step), saved, format_bytes(c.num_bytes), str(c.world), str(c.attempt), state)
    Console(highlight=False).print(table)


@app.command()
def show(
    run: RunArgument,
    step: int | None = _STEP,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = False,
) -> None:
    """One checkpoint with hashes of its weights and optimizer, which do not depend on the sharding."""
    from torchrelay.checkpoint.digest import digest_checkpoint  # torch is needed only here

    shelf = _open(run, store)
    chosen = _choose(shelf, step)
    manifest = shelf.read_manifest(chosen.commit)
    weights_sha256, optimizer_sha256 = digest_checkpoint(shelf, chosen.commit, manifest)
    facts = _facts(chosen) | {
        "weights_sha256": weights_sha256,
        "optimizer_sha256": optimizer_sha256,
        "tensors": len(manifest.tensors),
        "engine": manifest.origin.engine,
        "replicate": manifest.origin.replicate,
        "shard": manifest.origin.shard,
        "recipe_hash": manifest.origin.recipe_hash,
        "dataset_version": manifest.position.dataset_version,
        "code": manifest.origin.code,
    }
    if as_json:
        typer.echo(json.dumps(facts, indent=1))
        return
    for key, value in facts.items():
        typer.echo(f"{key:<18}{value}")


@app.command()
def verify(
    run: RunArgument,
    step: int | None = _STEP,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = False,
) -> None:
    """Read every byte of all checkpoints (or of one) and compare the checksums."""
    shelf = _open(run, store)
    chosen = shelf.all() if step is None else [_choose(shelf, step)]
    findings = {s.commit.name: shelf.verify(s.commit) for s in chosen}
    if as_json:
        typer.echo(json.dumps(findings, indent=1))
    else:
        for s in chosen:
            found = findings[s.commit.name]
            typer.echo(f"step {s.commit.step}  {'good' if not found else 'DAMAGED'}")
            for finding in found:
                typer.echo(f"  {finding}")
    if any(findings.values()):
        raise typer.Exit(ExitCode.BAD_INPUT)


def _open(run: str, store: str) -> Shelf:
    opened = open_store(store, retry_s=20.0)
    read_run(opened, run)
    return Shelf(opened, run)


def _choose(shelf: Shelf, step: int | None) -> Shelved:
    shelved = shelf.all()
    if step is None:
        good = [s for s in shelved if s.quarantine_reason is None]
        if not good:
            raise NotFoundError(f"run {shelf.run!r} has no good checkpoint")
        return good[-1]
    found = [s for s in shelved if s.commit.step == step]
    if not found:
        steps = ", ".join(str(s.commit.step) for s in shelved) or "none"
        raise NotFoundError(f"run {shelf.run!r} has no checkpoint of step {step}", hint=f"there are: {steps}")
    if found[-1].commit.checkpoint == "":
        raise DamagedError(f"checkpoint of step {step}: {found[-1].quarantine_reason}")
    return found[-1]


def _facts(shelved: Shelved) -> dict[str, Any]:
    c = shelved.commit
    return {
        "run": c.run,
        "step": c.step,
        "samples": c.samples,
        "tokens": c.tokens,
        "bytes": c.num_bytes,
        "files": c.files,
        "world": c.world,
        "attempt": c.attempt,
        "created": iso_time(c.created_s),
        "checkpoint": c.checkpoint,
        "state": "good" if shelved.quarantine_reason is None else "quarantined",
        "reason": shelved.quarantine_reason,
    }
