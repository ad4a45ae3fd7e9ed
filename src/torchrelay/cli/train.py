"""`torchrelay train`: check what can be checked without torch, start the ranks, say how it ended."""

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import typer

from torchrelay.core.clock import system_clock
from torchrelay.core.errors import ExitCode, RecipeError, StoreError
from torchrelay.core.record import ErrorRecord
from torchrelay.data.dataset import open_dataset
from torchrelay.launch.device import count_gpus
from torchrelay.launch.local import Outcome, Wishes, run_local
from torchrelay.observe.journal import open_journal, read_summary
from torchrelay.observe.rundir import run_prefix
from torchrelay.observe.status import RunStatus, describe_validation, summarise
from torchrelay.recipe.check import choose_degrees
from torchrelay.recipe.load import load_recipe
from torchrelay.recipe.schema import Recipe
from torchrelay.store.base import Store
from torchrelay.store.open import QUICK_S, check_writable, open_store

_KILLED = ErrorRecord(
    attempt=0,
    rank=0,
    host=socket.gethostname(),
    error="KeyboardInterrupt",
    message="ended without saving, as asked twice",
    hint="",
    exit_code=ExitCode.RETRYABLE,
    traceback="",
)


def command(
    recipe: str = typer.Argument(help="The recipe file."),
    settings: list[str] = typer.Option([], "--set", metavar="KEY=VALUE", help="Lay a value over the recipe."),
    nproc: int | None = typer.Option(None, min=1, help="Processes. Default: all GPUs, else 1."),
    fresh: bool = typer.Option(False, "--fresh", help="Start a new run under a new id."),
    store: str | None = typer.Option(None, help="Lay a store over run.store."),
) -> None:
    """Exit codes: 0 done, 75 saved and stopped on request, 78 bad input, 1 failed, 93 do not retry."""
    if store is not None:
        settings = [*settings, f"run.store={store}"]
    loaded = load_recipe(recipe, settings)
    num_processes = _choose_processes(nproc)
    choose_degrees(loaded.parallel, num_processes)
    check_writable(loaded.run.store, run_prefix(loaded.run.name))
    if loaded.data.dataset is not None:  # found here in a moment, by the ranks only after torch is loaded
        open_dataset(open_store(loaded.data.store or loaded.run.store, retry_s=QUICK_S), loaded.data.dataset)
    opened = open_store(loaded.run.store)
    arguments = [recipe, *(word for s in settings for word in ("--set", s)), *(["--fresh"] if fresh else [])]
    wishes = Wishes(keep_logs=lambda run: _log_folder(opened, run), tell_request=_tell_request)
    outcome = run_local(arguments, num_processes=num_processes, wishes=wishes)
    if outcome.was_killed:
        _print_killed(opened, outcome)
    elif outcome.cause is not None:
        _tell_journal(opened, outcome)
        _print_failure(outcome, outcome.cause)
    elif outcome.exit_code == ExitCode.DONE and outcome.run is not None:
        _print_summary(opened, outcome.run, loaded)
    raise typer.Exit(outcome.exit_code)


def _choose_processes(nproc: int | None) -> int:
    gpus = count_gpus()
    if nproc is None:
        return max(1, gpus)
    if gpus and nproc > gpus:
        raise RecipeError(
            f"--nproc {nproc}, but this machine has {gpus} GPUs", hint=f"use --nproc {gpus} or fewer"
        )
    return nproc


def _log_folder(store: Store, run: str) -> Path | None:
    """Beside the run where its store is a folder; one folder a start."""
    root = store.local_path(f"{run_prefix(run)}/logs")
    return None if root is None else root / f"{system_clock():.3f}"


def _tell_request(number: int) -> None:
    text = "stopping after this step, then saving; a second request ends at once" if number == 1 else "ending"
    os.write(2, f"\n{text}\n".encode())  # in a signal handler: nothing that could be in the middle of a print


def _print_killed(store: Store, outcome: Outcome) -> None:
    """After a second request to stop: what is safe."""
    if sys.stdout.isatty():
        typer.echo("\x1b[?25h", nl=False)  # the killed progress bar had hidden the cursor
    status = None
    if outcome.run is not None:
        _tell_journal(store, replace(outcome, cause=_KILLED))
        status = summarise(outcome.run, read_summary(store, outcome.run), now_s=system_clock())
    step = "none" if status is None or status.checkpoint_step is None else f"step {status.checkpoint_step}"
    typer.echo(f"ended without saving, as asked twice; newest checkpoint: {step}", err=True)


def _tell_journal(store: Store, outcome: Outcome) -> None:
    """Ranks that were killed cannot tell the journal; the launcher does it for them."""
    if outcome.run is None or outcome.cause is None:
        return
    if outcome.cause.rank == 0 and outcome.cause.error not in ("RankLostError", "KeyboardInterrupt"):
        return  # rank 0 wrote it itself
    with suppress(StoreError, OSError):  # what failed must still be printed
        journal = open_journal(store, outcome.run, outcome.attempt, part=".launcher")
        journal.write(replace(outcome.cause, attempt=outcome.attempt))
        journal.close()


def _print_failure(outcome: Outcome, cause: ErrorRecord) -> None:
    typer.echo(f"error: rank {cause.rank} on {cause.host} failed first: {cause.message}", err=True)
    if cause.traceback:
        last = [line for line in cause.traceback.strip().splitlines() if line.startswith("  File")][-1:]
        typer.echo("".join(f"{line.strip()}\n" for line in last), err=True, nl=False)
    if cause.hint:
        typer.echo(f"\nhint: {cause.hint}", err=True)
    typer.echo(f"log: {outcome.log}", err=True)


def _print_summary(store: Store, run: str, recipe: Recipe) -> None:
    status = summarise(run, read_summary(store, run), now_s=system_clock())
    done = typer.style(f"run {run} is done", fg=typer.colors.GREEN, bold=True)
    typer.echo(f"\n{done}: {status.step} steps, {status.tokens:,} {status.unit}")
    for label, value in _facts(store, status, recipe):
        typer.echo(f"{label:<17}{value}")


def _facts(store: Store, status: RunStatus, recipe: Recipe) -> Iterator[tuple[str, str]]:
    option = _store_option(recipe)
    if status.validation_first is not None and status.validation_last is not None:
        yield "validation", describe_validation(status)
    yield "run", f"{store.url}/{run_prefix(status.run)}"
    yield "checkpoints", f"torchrelay checkpoint list {status.run}{option}"
    yield "final model", status.model or "not written"
    if _writes_text(recipe):
        yield "try it", f"torchrelay sample {status.run}{option} --prompt 'def '"
    yield "train on", f"the same command with --set {_twice(recipe, status)}"


def _writes_text(recipe: Recipe) -> bool:
    huggingface = recipe.model.huggingface
    return recipe.model.decoder is not None or (huggingface is not None and huggingface.task == "causal-lm")


def _twice(recipe: Recipe, status: RunStatus) -> str:
    """The key that gives the run's length, twice as long."""
    if recipe.train.epochs is not None:
        return f"train.epochs={2 * recipe.train.epochs:g}"
    if recipe.train.tokens is not None:
        return f"train.tokens={2 * status.tokens}"
    return f"train.steps={2 * status.step}"


def _store_option(recipe: Recipe) -> str:
    default = type(recipe.run).model_fields["store"].default
    return "" if recipe.run.store == default else f" --store {recipe.run.store}"
