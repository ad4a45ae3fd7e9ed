"""Saving and resuming of a session: what goes into a checkpoint and what is taken out of it."""

import time
from contextlib import suppress
from dataclasses import dataclass

import torch

from torchrelay.checkpoint.load import load_newest
from torchrelay.checkpoint.manifest import Commit, Manifest, Progress
from torchrelay.checkpoint.save import Snapshot, save_checkpoint
from torchrelay.checkpoint.state import (
    OPTIMIZER,
    allocate_optimizer_state,
    group_values,
    model_state,
    optimizer_state,
    optimizer_values,
    restore_groups,
    restore_values,
)
from torchrelay.checkpoint.storage import dtype_of
from torchrelay.core.errors import CheckpointError, RankLostError, StoreError
from torchrelay.core.record import CheckpointRecord, DataRecord, ResumeRecord
from torchrelay.observe.journal import Sink
from torchrelay.observe.rundir import newest_attempt
from torchrelay.parallel.engine import share_buffers
from torchrelay.train.optimizer import RECIPE_KEYS
from torchrelay.train.random_state import capture_random_state, restore_random_state
from torchrelay.train.session import Session


@dataclass(slots=True)
class Keeper:
    """Saves a session's state and remembers which step is safe. One per rank; methods are collectives."""

    session: Session
    sink: Sink
    saved_step: int = -1
    """Newest step with a commit record."""

    def save(self, progress: Progress) -> None:
        """Save once for this step; a failure is recorded, and raised when the recipe says stop."""
        if progress.step == self.saved_step:
            return
        self._require_newest()
        begun = time.perf_counter()
        share_buffers(self.session.engine.module)
        try:
            commit = save_checkpoint(self.session.shelf, self.session.world, self._snapshot(progress))
        except CheckpointError as error:
            self._record(progress.step, "failed", "", 0, time.perf_counter() - begun, error.message)
            if self.session.recipe.checkpoint.on_failure == "stop":
                raise
            return
        self.saved_step = progress.step
        self._record_commit(commit, time.perf_counter() - begun)
        self._record_data(progress.step)
        self._prune()

    def _require_newest(self) -> None:
        """Two attempts must not save into one run: the older one ends."""
        session = self.session
        newest = session.world.lead(lambda: newest_attempt(session.store, session.run.run))
        if newest > session.attempt:
            raise RankLostError(
                f"attempt {newest} of run {session.run.run!r} has begun; this is attempt {session.attempt}",
                hint="one of the two must go; this one saves no more",
            )

    def require_saved(self, progress: Progress) -> None:
        """CheckpointError unless this step is committed; for the moments when training ends."""
        if self.saved_step != progress.step:
            raise CheckpointError(
                f"training ended at step {progress.step}, but its state could not be saved; "
                f"the newest checkpoint is of step {self.saved_step}",
                hint="mend the store and start again: training resumes from that checkpoint",
            )

    def resume(self) -> Progress:
        """Take state from the newest good checkpoint, or begin at step 0. Says which, always."""
        if self.session.world.leads:
            with suppress(StoreError, OSError):  # only tidying up
                self.session.shelf.sweep()
        loaded = load_newest(self.session.shelf, self.session.world, self._targets)
        if loaded is None:
            self._record_resume(Progress(step=0, samples=0, tokens=0), None)
            return Progress(step=0, samples=0, tokens=0)
        for commit, reason in loaded.quarantined:
            self._record(commit.step, "quarantined", commit.checkpoint, commit.num_bytes, 0.0, reason)
        manifest = loaded.manifest
        self.session.training.go_on(manifest.position, step=manifest.progress.step)
        restore_values(self.session.engine.module, self.session.optimizer, manifest.optimizer_values)
        restore_groups(self.session.optimizer, manifest.optimizer_groups, keep=RECIPE_KEYS)
        rank = self.session.world.rank
        if manifest.origin.world == self.session.world.size:
            restore_random_state(manifest.random_states[rank])
        self.saved_step = manifest.progress.step
        self._record_resume(manifest.progress, manifest)
        return manifest.progress

    def _snapshot(self, progress: Progress) -> Snapshot:
        module, optimizer = self.session.engine.module, self.session.optimizer
        return Snapshot(
            tensors=model_state(module) | optimizer_state(module, optimizer),
            progress=progress,
            origin=self.session.origin(),
            position=self.session.training.position(progress.step),
            optimizer_groups=group_values(optimizer),
            optimizer_values=optimizer_values(module, optimizer),
            random_state=capture_random_state(),
        )

    def _targets(self, manifest: Manifest) -> dict[str, torch.Tensor]:
        module, optimizer = self.session.engine.module, self.session.optimizer
        optimizer.state.clear()
        shapes = {
            name: (saved.shape, dtype_of(saved.dtype))
            for name, saved in manifest.tensors.items()
            if name.startswith(OPTIMIZER)
        }
        return model_state(module) | allocate_optimizer_state(module, optimizer, shapes)

    def _prune(self) -> None:
        # Rank 0 alone deletes; nobody waits for it. What it cannot delete now, the next save tries again.
        if not self.session.world.leads:
            return
        keep = self.session.recipe.checkpoint
        with suppress(StoreError, OSError):
            for commit in self.session.shelf.prune(keep_last=keep.keep_last, keep_every=keep.keep_every):
                self._record(commit.step, "deleted", commit.checkpoint, commit.num_bytes, 0.0, "retention")

    def _record_commit(self, commit: Commit, seconds: float) -> None:
        self._record(commit.step, "committed", commit.checkpoint, commit.num_bytes, seconds, "")

    def _record_data(self, step: int) -> None:
        course = self.session.training.itinerary.course
        slot = course.turns.slot_after(step * course.plan.batch)
        parts = [
            {"dataset": source.dataset, "samples": own, "epoch": own // source.samples}
            for source, own in zip(course.plan.sources, course.own_slots(slot), strict=True)
        ]
        self.sink.write(DataRecord(step=step, slot=slot, parts=parts, attempt=self.session.attempt))

    def _record(
        self, step: int, state: str, checkpoint: str, num_bytes: int, seconds: float, reason: str
    ) -> None:
        self.sink.write(
            CheckpointRecord(
                step=step,
                state=state,
                checkpoint=checkpoint,
                bytes=num_bytes,
                seconds=round(seconds, 6),
                attempt=self.session.attempt,
                reason=reason,
            )
        )

    def _record_resume(self, progress: Progress, manifest: Manifest | None) -> None:
        if manifest is None and self.session.attempt == 1:
            return  # a new run: there was nothing to resume
        changes = list(self.session.changes)
        if manifest is not None:
            changes += _layout_changes(manifest, self.session)
        reason = "newest good checkpoint" if manifest else "no checkpoint was committed before"
        self.sink.write(
            ResumeRecord(
                attempt=self.session.attempt,
                step=progress.step,
                samples=progress.samples,
                tokens=progress.tokens,
                checkpoint=manifest.checkpoint if manifest else None,
                reason=reason,
                saved_world=manifest.origin.world if manifest else None,
                world=self.session.world.size,
                changes=changes,
            )
        )


def _layout_changes(manifest: Manifest, session: Session) -> list[str]:
    before, now = manifest.origin, session.origin()
    pairs = {
        "processes": (before.world, now.world),
        "engine": (before.engine, now.engine),
        "replicate": (before.replicate, now.replicate),
        "shard": (before.shard, now.shard),
        "micro-batch": (before.micro_batch, now.micro_batch),
        "code": (before.code, now.code),
    }
    changes = [f"{name}: {old} → {new}" for name, (old, new) in pairs.items() if old != new]
    if before.world != now.world:
        changes.append("random generators of Python and NumPy: seeded anew")
    return changes
