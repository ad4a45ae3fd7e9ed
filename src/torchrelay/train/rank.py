"""What one training process does from its start to its exit code."""

import time
from contextlib import ExitStack

import torch
from rich.console import Console

from torchrelay.core.environment import RankEnvironment
from torchrelay.core.errors import ExitCode
from torchrelay.core.record import StartRecord
from torchrelay.observe.console import ConsoleSink
from torchrelay.observe.failure import announce_run, record_failure
from torchrelay.observe.journal import Sink, open_journal
from torchrelay.observe.tee import Tee
from torchrelay.parallel.world import World, explaining, join_world
from torchrelay.recipe.schema import Recipe
from torchrelay.train.entry import code_version
from torchrelay.train.finish import export_final
from torchrelay.train.keep import Keeper
from torchrelay.train.loop import Course, train
from torchrelay.train.session import Session, open_session
from torchrelay.train.signal import StopFlag


class Nothing:
    """A sink for ranks that have nothing to say."""

    def write(self, record: object) -> None:
        """Drop it."""

    def flush(self) -> None:
        """Nothing waits."""

    def close(self) -> None:
        """Nothing to close."""


def run_rank(recipe: Recipe, environment: RankEnvironment, *, fresh: bool) -> ExitCode:
    """Train as one rank of `environment`; raises RelayError or whatever the model raised."""
    stop = StopFlag()
    stop.install()
    with ExitStack() as stack:
        with join_world(environment, timeout_s=recipe.parallel.timeout) as world:
            session = open_session(recipe, world, fresh=fresh)
            sink = _open_sink(session, environment)
            stack.callback(sink.close)
            with (
                record_failure(sink, rank=world.rank, attempt=session.attempt),
                explaining(recipe.parallel.timeout),
            ):
                code = _train(session, sink, stop, stack)
        if code == ExitCode.DONE and environment.rank == 0:
            with record_failure(sink, rank=0, attempt=session.attempt):
                export_final(session, sink)
    return code


def _train(session: Session, sink: Sink, stop: StopFlag, stack: ExitStack) -> ExitCode:
    sink.write(_start_record(session))
    keeper = Keeper(session=session, sink=sink)
    progress = keeper.resume()
    follower = session.read_on(progress.step)
    stack.callback(follower.close)
    samples = _open_sample_log(session)
    if samples is not None:
        stack.callback(samples.close)
    now = time.perf_counter()
    course = Course(
        session=session,
        keeper=keeper,
        follower=follower,
        sink=sink,
        samples=samples,
        stop=stop,
        saved_s=now,
        validated_s=now,
    )
    return train(course, progress)


def _open_sink(session: Session, environment: RankEnvironment) -> Sink:
    """Rank 0 writes the journal and the console; the others write nothing."""
    if not session.world.leads:
        return Nothing()
    announce_run(environment.error_folder, run=session.run.run, attempt=session.attempt)
    console = ConsoleSink(Console(), print_every_s=session.recipe.observe.print_every)
    return Tee([open_journal(session.store, session.run.run, session.attempt), console])


def _open_sample_log(session: Session) -> Sink | None:
    if not session.recipe.observe.sample_log:
        return None
    part = f".samples-rank-{session.world.rank:05d}"
    return open_journal(session.store, session.run.run, session.attempt, part=part)


def _start_record(session: Session) -> StartRecord:
    world: World = session.world
    return StartRecord(
        attempt=session.attempt,
        run=session.run.run,
        world=world.size,
        engine=session.degrees.engine,
        replicate=session.degrees.replicate,
        shard=session.degrees.shard,
        device=world.device.type,
        micro_batch=session.feed.micro_batch,
        accumulation=session.feed.share.rounds,
        parameters=sum(p.numel() for p in session.engine.module.parameters()),
        steps=session.steps,
        unit="samples" if session.training.facts.vocabulary is None else "tokens",
        dataset_version=session.training.plan.version,
        recipe_hash=session.run.recipe_hash,
        code=code_version(),
        torch=torch.__version__,
    )
