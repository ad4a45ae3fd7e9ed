"""Which run this attempt belongs to: a new one, or the newest of that name. Runs on rank 0.

A changed recipe or another dataset version is refused with the list of differences; nothing is
written before everything was found right.
"""

import functools
import platform
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from pydantic import ValidationError

import torchrelay
from torchrelay.checkpoint.shelf import Shelf
from torchrelay.core.clock import Clock, system_clock
from torchrelay.core.errors import DamagedError, RecipeError
from torchrelay.data.order.course import Plan
from torchrelay.data.order.position import DataPosition
from torchrelay.observe.rundir import RunRecord, claim_attempt, create_run, free_run, newest_run, read_run
from torchrelay.recipe.difference import differences, refuse_message
from torchrelay.recipe.load import recipe_hash
from torchrelay.recipe.schema import Recipe
from torchrelay.store.base import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """The run and the attempt that were claimed."""

    run: RunRecord
    attempt: int
    changes: list[str]
    """Recipe keys that differ from the run's first start, in words."""


def find_run(store: Store, recipe: Recipe, *, fresh: bool) -> RunRecord | None:
    """The run to resume, or None to begin one."""
    if fresh:
        return None
    run = newest_run(store, recipe.run.name)
    return None if run is None else read_run(store, run)


def enter_run(
    store: Store, recipe: Recipe, found: RunRecord | None, *, facts: "EntryFacts", clock: Clock = system_clock
) -> Entry:
    """Begin a run or claim the next attempt of `found`."""
    changes = []
    if found is not None:
        changes = _check_same(found, recipe)
        _check_data(store, found, facts.plan)
    run = found or _begin(store, recipe, facts, clock())
    attempt = claim_attempt(store, run.run, world=facts.world, now_s=clock())
    return Entry(run=run, attempt=attempt.attempt, changes=changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryFacts:
    """What must be known to enter a run."""

    plan: Plan
    """The order of the data that the recipe wants."""
    micro_batch: int
    world: int


@functools.cache
def code_version() -> str:
    """Torchrelay's version, with the git commit when it runs from a checkout."""
    folder = Path(__file__).parents[3]
    if not (folder / ".git").exists():  # installed; a repository around it is somebody else's
        return torchrelay.__version__
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), "describe", "--always", "--dirty"],
            capture_output=True, text=True, timeout=5, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return torchrelay.__version__
    return f"{torchrelay.__version__}+{done.stdout.strip()}"


def _environment() -> Mapping[str, str]:
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "system": platform.platform(),
        "cuda": torch.version.cuda or "",
    }


def _begin(store: Store, recipe: Recipe, facts: EntryFacts, now_s: float) -> RunRecord:
    run = RunRecord(
        run=free_run(store, recipe.run.name),
        name=recipe.run.name,
        created_s=now_s,
        recipe=recipe.model_dump(mode="json"),
        recipe_hash=recipe_hash(recipe),
        dataset_version=facts.plan.version,
        micro_batch=facts.micro_batch,
        code=code_version(),
        environment=dict(_environment()),
    )
    create_run(store, run)
    return run


def _check_same(found: RunRecord, recipe: Recipe) -> list[str]:
    try:
        before = Recipe.model_validate(found.recipe)
    except ValidationError as error:
        raise RecipeError(
            f"the recipe of run {found.run!r} was written by another version of torchrelay ({found.code})",
            hint="use that version, or start a new run with --fresh",
        ) from error
    changes = differences(before, recipe)
    if any(not change.allowed for change in changes):
        raise RecipeError(
            f"run {found.run!r} exists with another recipe:\n{refuse_message(changes)}",
            hint="undo these changes, start anew with --fresh, or change run.name",
        )
    return [f"{change.path}: {change.old} → {change.new}" for change in changes]


def _check_data(store: Store, found: RunRecord, plan: Plan) -> None:
    """Where the data is not what the run began with, its newest checkpoint says what it has read since."""
    if found.dataset_version == plan.version:
        return
    saved = _newest_position(Shelf(store, found.run))
    if saved is not None:
        plan.check(saved)
    elif not plan.may_add and not found.dataset_version.startswith(plan.migrate_from or " "):
        raise RecipeError(
            f"run {found.run!r} trains on version {found.dataset_version[:12]} of the dataset, "
            f"but data.dataset now gives {plan.version[:12]}",
            hint=f"write data.dataset: NAME@{found.dataset_version[:12]}, or start anew with --fresh",
        )


def _newest_position(shelf: Shelf) -> DataPosition | None:
    """None when there is no checkpoint that can be read."""
    for commit in shelf.usable():
        with suppress(DamagedError):
            return shelf.read_manifest(commit).position
    return None
