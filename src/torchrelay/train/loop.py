"""The loop. Read it top to bottom: this is all that happens in a step, on every rank."""

import json
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import astuple, dataclass
from typing import NamedTuple

import numpy as np
import torch

from torchrelay.checkpoint.manifest import Progress
from torchrelay.core.errors import ExitCode, NumericsError
from torchrelay.core.record import SamplesRecord, StepRecord, StopRecord, ValidationRecord
from torchrelay.data.batch import MicroBatch
from torchrelay.data.figures import name_counts
from torchrelay.data.follower import Follower
from torchrelay.data.order.gaps import list_ranges
from torchrelay.observe.journal import Sink, read_summary
from torchrelay.parallel.engine import Unit, share_buffers
from torchrelay.train.agreement import Vote, count_votes
from torchrelay.train.cadence import is_due
from torchrelay.train.evaluate import measure
from torchrelay.train.keep import Keeper
from torchrelay.train.optimizer import set_lr
from torchrelay.train.session import Session
from torchrelay.train.signal import StopFlag


class Named(NamedTuple):
    """A sample of a step."""

    slot: int
    sample_id: int


@dataclass(slots=True, kw_only=True)
class Course:
    """What the loop keeps between steps."""

    session: Session
    keeper: Keeper
    follower: Follower
    """Fetches data ahead; is told how far the run has come."""
    sink: Sink
    samples: Sink | None
    """Where this rank's sample ids go, or None."""
    stop: StopFlag
    saved_s: float
    """`perf_counter` when the last save ended."""
    validated_s: float


def train(course: Course, progress: Progress) -> ExitCode:
    """Train from `progress` to the end of the run, or to a request to stop. A collective."""
    session = course.session
    if progress.step == 0:
        validate(course, progress)
    with closing(session.feed.stream(progress.step + 1, session.steps)) as batches:
        while progress.step < session.steps:
            progress, votes = run_step(course, progress, batches)
            if progress.step < session.steps and not _go_on(course, progress, votes):
                return _stop(course, progress, "asked to stop", ExitCode.CHECKPOINTED)
    if course.keeper.saved_step < progress.step:
        _save(course, progress)
    course.keeper.require_saved(progress)
    if not _is_validated(session):
        validate(course, progress)
    return _stop(course, progress, "finished", ExitCode.DONE)


def _go_on(course: Course, progress: Progress, votes: Vote) -> bool:
    """What is due after a step; False when all agreed to stop. Saving comes first: a stop has a deadline."""
    if votes.save or votes.stop:
        _save(course, progress)
    if votes.stop:
        course.keeper.require_saved(progress)
        return False
    if votes.validate:
        validate(course, progress)
    return True


def run_step(
    course: Course, progress: Progress, batches: Iterator[list[MicroBatch]]
) -> tuple[Progress, Vote]:
    """One optimizer update: data, forward and backward, agreement, update, record."""
    session = course.session
    begun = time.perf_counter()
    step = progress.step + 1
    course.follower.advance(progress.step * session.feed.global_batch)
    own = next(batches)
    units, targets = session.feed.units(step, own)
    data_seconds = time.perf_counter() - begun

    loss_sum = float(session.engine.forward_backward(units))
    votes = count_votes(session.world, _vote(course, step, loss_sum, own))
    loss, grad_norm = votes.loss_sum / targets, math.sqrt(votes.norm_share)
    if votes.bad_ranks or not math.isfinite(grad_norm):
        what = f"step {step}: loss {loss:g}, gradient norm {grad_norm:g}"
        raise _not_finite(session, units, _name_samples(session, step, own), what)

    lr = _update(session, step, grad_norm)
    progress = Progress(
        step=step,
        samples=progress.samples + session.training.itinerary.course.samples_in(step),
        tokens=progress.tokens + votes.tokens,
    )
    course.sink.write(
        StepRecord(
            step=step,
            loss=loss,
            samples=progress.samples,
            tokens=progress.tokens,
            seconds=round(time.perf_counter() - begun, 6),
            lr=lr,
            grad_norm=grad_norm,
            world=session.world.size,
            attempt=session.attempt,
            data_seconds=round(data_seconds, 6),
            fetch=name_counts(votes.fetch),
        )
    )
    if course.samples is not None:
        course.samples.write(_sample_record(session, step, own))
    return progress, votes


def _update(session: Session, step: int, grad_norm: float) -> float:
    """Clip, set the learning rate, change the weights; returns the learning rate."""
    limit = session.recipe.train.clip_norm
    if limit is not None and grad_norm > limit:
        torch._foreach_mul_(session.engine.gradients(), limit / (grad_norm + 1e-6))
    lr = session.schedule.lr(step)
    set_lr(session.optimizer, lr)
    session.optimizer.step()
    session.optimizer.zero_grad()
    return lr


def validate(course: Course, progress: Progress) -> None:
    """Measure the validation split and record it; nothing where there is none."""
    session = course.session
    reader = session.validation
    if reader is None:
        return
    share_buffers(session.engine.module)
    wanted = session.recipe.train.validation_samples
    measured = measure(
        session.engine,
        session.world,
        reader,
        samples=reader.num_samples if wanted == "all" else min(wanted, reader.num_samples),
        batch=session.feed.micro_batch,
    )
    per_byte = reader.bytes_per_token
    course.sink.write(
        ValidationRecord(
            step=progress.step,
            loss=measured.loss,
            bits_per_byte=measured.loss / math.log(2) / per_byte if per_byte else None,
            samples=measured.samples,
            targets=measured.targets,
            seconds=round(measured.seconds, 6),
            attempt=session.attempt,
        )
    )
    course.validated_s = time.perf_counter()


def _save(course: Course, progress: Progress) -> None:
    """The records of the steps first: a resume from this checkpoint does not repeat them."""
    course.sink.flush()
    if course.samples is not None:
        course.samples.flush()
    course.keeper.save(progress)
    course.saved_s = time.perf_counter()


def _vote(course: Course, step: int, loss_sum: float, own: list[MicroBatch]) -> Vote:
    recipe, leads = course.session.recipe, course.session.world.leads
    figures = course.session.training.figures()
    now = time.perf_counter()
    save = leads and is_due(recipe.checkpoint.every, step=step, elapsed_s=now - course.saved_s)
    check = leads and is_due(recipe.train.validate_every, step=step, elapsed_s=now - course.validated_s)
    return Vote(
        loss_sum=loss_sum,
        norm_share=course.session.engine.norm_share(),
        tokens=sum(batch.num_tokens for batch in own),
        bad_ranks=0 if math.isfinite(loss_sum) else 1,
        stop=int(course.stop.raised),
        save=int(save),
        validate=int(check),
        fetch=() if figures is None else astuple(figures),
    )


def _is_validated(session: Session) -> bool:
    """Whether the last step is validated already: a run may have died between its save and that."""

    def look() -> bool:
        records = read_summary(session.store, session.run.run)
        return any(r["kind"] == "validation" and r["step"] == session.steps for r in records)

    return session.world.lead(look)


def _not_finite(session: Session, units: list[Unit], own: list[list[Named]], what: str) -> NumericsError:
    """Name the samples: of the micro-batches whose loss is bad, or all when only the gradients are.

    Every rank runs all its units once more, without gradients, to find out which.
    """
    losses = [float(session.engine.loss(unit.tensors)) for unit in units]
    bad = [batch for batch, loss in zip(own, losses, strict=False) if not math.isfinite(loss)]
    found = session.world.collect([named for batch in bad for named in batch])
    if not any(found):
        found = session.world.collect([named for batch in own for named in batch])
    ids = sorted({named.sample_id for of_rank in found for named in of_rank})
    slots = list_ranges([named.slot for of_rank in found for named in of_rank])
    return NumericsError(
        f"{what}; the update was not applied. Slots: {_shorten(slots)}. Samples: {_shorten(ids)}",
        hint="look at these samples, and leave them out with data.skip: "
        f"{json.dumps(slots[:16])}; or lower train.optimizer.lr, or lengthen train.schedule.warmup",
    )


def _name_samples(session: Session, step: int, own: list[MicroBatch]) -> list[list[Named]]:
    """The samples of each of this rank's micro-batches."""
    turns = session.training.itinerary.course.turns
    slots = [[s for s in turns.slots(unit).tolist() if s >= 0] for unit in session.feed.plan(step).slots]
    return [
        [Named(*pair) for pair in zip(of_unit, batch.sample_ids.tolist(), strict=False)]
        for of_unit, batch in zip(slots, own, strict=True)
    ]


def _shorten(names: Sequence[object]) -> str:
    shown = ", ".join(map(str, names[:64]))
    return shown if len(names) <= 64 else f"{shown}, … ({len(names)} in all)"


def _sample_record(session: Session, step: int, own: list[MicroBatch]) -> SamplesRecord:
    ids = np.concatenate([batch.sample_ids for batch in own]).tolist()
    return SamplesRecord(step=step, rank=session.world.rank, attempt=session.attempt, ids=ids)


def _stop(course: Course, progress: Progress, reason: str, code: ExitCode) -> ExitCode:
    course.sink.write(
        StopRecord(step=progress.step, reason=reason, exit_code=code, attempt=course.session.attempt)
    )
    return code
