"""Load: the newest checkpoint that every rank can read, verified while it is read. Collective.

A checkpoint that turns out damaged is quarantined with its reason, and the one before it is
tried. When checkpoints exist but none can be used, the run stops: nothing ever starts fresh
silently.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

from torchrelay.checkpoint.manifest import Commit, Manifest
from torchrelay.checkpoint.shelf import Shelf
from torchrelay.checkpoint.storage import ChunkReader, quietly
from torchrelay.core.clock import Clock, system_clock
from torchrelay.core.errors import DamagedError, ModelError
from torchrelay.parallel.world import World

Targets = Callable[[Manifest], dict[str, torch.Tensor]]
"""Gives the tensors to fill, by the names they were saved under."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """What was loaded, and what had to be passed over for it."""

    commit: Commit
    manifest: Manifest
    quarantined: list[tuple[Commit, str]]


def load_newest(
    shelf: Shelf, world: World, targets: Targets, *, clock: Clock = system_clock
) -> Loaded | None:
    """Fill the targets in place from the newest good checkpoint; None when none was ever committed.

    Raises DamagedError with the list when none of the committed ones can be used.
    """
    quarantined: list[tuple[Commit, str]] = []
    for shelved in reversed(world.lead(shelf.all)):
        if shelved.is_recorded:
            continue
        commit, manifest, reason = shelved.commit, None, shelved.quarantine_reason
        if reason is None:
            manifest, reason = _try_load(shelf, world, commit, targets)
        if manifest is not None:
            return Loaded(commit=commit, manifest=manifest, quarantined=quarantined)
        quarantined.append((commit, reason))
        if world.leads:
            shelf.quarantine(commit, reason, clock())
    _refuse_if_damaged(shelf, world)
    return None


def _refuse_if_damaged(shelf: Shelf, world: World) -> None:
    rows = [
        f"  step {s.commit.step} ({s.commit.checkpoint or s.commit.name}): {s.quarantine_reason}"
        for s in (shelf.all() if world.leads else [])
    ]
    rows = world.share(rows)
    if rows:
        raise DamagedError(
            f"run {shelf.run!r} has {len(rows)} checkpoints and none can be used:\n" + "\n".join(rows),
            hint="restore the files and delete the QUARANTINE records, or start a new run with --fresh",
        )


def _try_load(shelf: Shelf, world: World, commit: Commit, targets: Targets) -> tuple[Manifest | None, str]:
    """The manifest when every rank filled its targets, else None and the first reason."""
    problem, manifest = "", None
    try:
        manifest = shelf.read_manifest(commit)
    except DamagedError as error:
        problem = error.message
    problem = _first(world.collect(problem))
    if problem or manifest is None:
        return None, problem
    tensors = targets(manifest)
    _match(tensors, manifest)
    reader = ChunkReader(shelf.store, f"{shelf.prefix}/{commit.checkpoint}", manifest.tensors)
    try:
        with quietly():
            dcp.load(tensors, storage_reader=reader, process_group=world.checkpoint, no_dist=world.size == 1)
    except CheckpointException as error:  # derives from BaseException
        problem = _damage(error)
    problem = _first(world.collect(problem))
    return (None, problem) if problem else (manifest, "")


def _match(tensors: dict[str, torch.Tensor], manifest: Manifest) -> None:
    # Not damage (the manifest's hash was right), so nothing is quarantined for it.
    missing = sorted(set(tensors) - set(manifest.tensors))
    surplus = sorted(set(manifest.tensors) - set(tensors))
    if missing or surplus:
        raise ModelError(
            f"checkpoint {manifest.checkpoint} is of another model: {len(missing)} tensors missing "
            f"{missing[:3]}, {len(surplus)} unknown {surplus[:3]}",
            hint=_MODEL_HINT,
        )
    for name, tensor in tensors.items():
        if tuple(tensor.shape) != manifest.tensors[name].shape:
            raise ModelError(
                f"checkpoint {manifest.checkpoint} is of another model: {name} has shape "
                f"{list(manifest.tensors[name].shape)}, the model's is {list(tensor.shape)}",
                hint=_MODEL_HINT,
            )


_MODEL_HINT = "the model's code changed since it was saved: undo that, or start a new run with --fresh"


def _first(problems: list[str]) -> str:
    return next((problem for problem in problems if problem), "")


def _damage(error: CheckpointException) -> str:
    """What is damaged. Raises any other cause: a store that is away is no reason to give a checkpoint up."""
    causes = [cause for _, (cause, _) in sorted(error.failures.items())]
    for cause in causes:
        if not isinstance(cause, DamagedError):
            raise cause from error
    return str(causes[0].args[0])
