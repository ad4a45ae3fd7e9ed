"""Save: every rank writes its part, then rank 0 commits. Collective; on the checkpoint group only.

Nothing is ever overwritten. A save that fails on any rank fails on all of them, leaves no
commit record, and leaves every earlier checkpoint as it was.
"""

import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

from torchrelay.checkpoint.manifest import Commit, Manifest, Origin, Progress
from torchrelay.checkpoint.shelf import Shelf
from torchrelay.checkpoint.storage import ChunkWriter, quietly
from torchrelay.core.errors import CheckpointError, RelayError
from torchrelay.data.order.position import DataPosition
from torchrelay.parallel.world import World


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What one rank brings to a save."""

    tensors: Mapping[str, torch.Tensor]
    progress: Progress
    origin: Origin
    position: DataPosition
    optimizer_groups: list[dict[str, Any]]
    optimizer_values: dict[str, dict[str, Any]]
    random_state: dict[str, Any]


def save_checkpoint(shelf: Shelf, world: World, snapshot: Snapshot) -> Commit:
    """Write and commit; the same Commit on every rank, or CheckpointError on every rank."""
    folder = (
        f"step-{snapshot.progress.step:09d}/a-{snapshot.origin.attempt}-{world.share(uuid.uuid4().hex[:8])}"
    )
    writer = ChunkWriter(shelf.store, f"{shelf.prefix}/{folder}", world.rank)
    try:
        with quietly():
            dcp.save(
                dict(snapshot.tensors),
                storage_writer=writer,
                process_group=world.checkpoint,
                no_dist=world.size == 1,
            )
    except CheckpointException as error:  # derives from BaseException
        _abandon(shelf, world, folder)
        raise CheckpointError(_first_failure(error, world), hint=_HINT) from error
    random_states = _gather(snapshot.random_state, world)
    outcome: Commit | str = ""
    if world.leads:
        manifest = Manifest(
            checkpoint=folder,
            progress=snapshot.progress,
            origin=snapshot.origin,
            position=snapshot.position,
            tensors=writer.tensors,
            optimizer_groups=snapshot.optimizer_groups,
            optimizer_values=snapshot.optimizer_values,
            random_states=random_states,
            parts=writer.parts,
        )
        outcome = _commit(shelf, manifest)
    outcome = world.share(outcome)
    if isinstance(outcome, str):
        raise CheckpointError(f"could not commit step {snapshot.progress.step}: {outcome}", hint=_HINT)
    return outcome


_HINT = "free space or mend the store; checkpoint.on_failure decides whether training goes on meanwhile"


def _commit(shelf: Shelf, manifest: Manifest) -> Commit | str:
    try:
        return shelf.commit(manifest)
    except RelayError as error:
        return error.message
    except OSError as error:  # the disk is full, so there is no commit record; its space may be needed
        _discard(shelf, manifest.checkpoint)
        return str(error)


def _gather(value: dict[str, Any], world: World) -> list[dict[str, Any]]:
    if world.size == 1:
        return [value]
    values: list[Any] = [None] * world.size
    dist.all_gather_object(values, value, group=world.checkpoint)
    return values


def _abandon(shelf: Shelf, world: World, folder: str) -> None:
    # Its space may be just what the next save lacks.
    if world.leads:
        _discard(shelf, folder)


def _discard(shelf: Shelf, folder: str) -> None:
    # Failing to delete it changes nothing: without a commit record it is invisible, and the next
    # prune tries again.
    with suppress(RelayError, OSError):
        shelf.discard(folder)


def _first_failure(error: CheckpointException, world: World) -> str:
    rank, (cause, _) = min(error.failures.items())
    message = cause.message if isinstance(cause, RelayError) else f"{type(cause).__name__}: {cause}"
    others = f" (and {len(error.failures) - 1} more)" if len(error.failures) > 1 else ""
    return f"rank {rank}{others} could not write its part: {message}"
