"""Everything an attempt needs, built once, in the order in which things can go wrong cheaply.

Store, data and model are checked before the run is entered, so that bad input leaves nothing
behind.
"""

import math
from dataclasses import dataclass
from fractions import Fraction

from torchrelay.checkpoint.manifest import Origin
from torchrelay.checkpoint.shelf import Shelf
from torchrelay.core.clock import system_clock
from torchrelay.core.errors import RecipeError
from torchrelay.core.plugins import load_plugin
from torchrelay.data.follower import Follower
from torchrelay.data.loader import SplitReader, open_split, open_validation
from torchrelay.data.manifest import TRAIN
from torchrelay.data.order.outlook import SlotPattern
from torchrelay.model.task import Task
from torchrelay.observe.rundir import RunRecord, run_prefix
from torchrelay.parallel.engine import Engine, Placement
from torchrelay.parallel.world import World
from torchrelay.recipe.check import Degrees, choose_degrees
from torchrelay.recipe.horizon import parse_horizon, parse_tokens
from torchrelay.recipe.load import recipe_hash
from torchrelay.recipe.schema import Recipe
from torchrelay.store.base import Store
from torchrelay.store.open import check_writable, open_store
from torchrelay.train.entry import Entry, EntryFacts, code_version, enter_run, find_run
from torchrelay.train.feed import Feed
from torchrelay.train.optimizer import Optimizer, build_optimizer
from torchrelay.train.random_state import seed_process
from torchrelay.train.schedule import Schedule, build_schedule
from torchrelay.train.units import choose_micro_batch, share_units


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One attempt, ready to train. The same on every rank but for `feed`."""

    recipe: Recipe
    world: World
    store: Store
    run: RunRecord
    attempt: int
    changes: list[str]
    degrees: Degrees
    task: Task
    engine: Engine
    optimizer: Optimizer
    schedule: Schedule
    feed: Feed
    training: SplitReader
    validation: SplitReader | None
    steps: int
    """Step at which the run ends."""

    @property
    def shelf(self) -> Shelf:
        """The run's checkpoints."""
        return Shelf(self.store, self.run.run)

    def read_on(self, step: int) -> Follower:
        """Begin to fetch the data that is needed after `step` steps; the caller closes it."""
        rank = self.world.rank
        pattern = find_pattern(self.feed, range(rank, rank + 1))
        return self.training.follow(pattern, step=step, last_step=self.steps)

    def origin(self) -> Origin:
        """What a checkpoint of this attempt belongs to."""
        return Origin(
            run=self.run.run,
            attempt=self.attempt,
            world=self.world.size,
            engine=self.degrees.engine,
            replicate=self.degrees.replicate,
            shard=self.degrees.shard,
            micro_batch=self.feed.micro_batch,
            recipe_hash=recipe_hash(self.recipe),
            code=code_version(),
            created_s=system_clock(),
        )


def open_session(recipe: Recipe, world: World, *, fresh: bool) -> Session:
    """Build everything; a collective. Raises before anything is written when the input is bad."""
    store = open_store(recipe.run.store)
    world.lead(lambda: check_writable(recipe.run.store, run_prefix(recipe.run.name)))
    found = world.lead(lambda: find_run(store, recipe, fresh=fresh))
    training, validation = _open_data(recipe)
    steps = count_steps(recipe, training)
    feed = _build_feed(recipe, world, training, found)
    training.check_room(find_pattern(feed, _node_ranks(world)))
    degrees = choose_degrees(recipe.parallel, world.size)
    seed_process(recipe.run.seed, world.rank)
    task = build_task(recipe, training)
    engine = _build_engine(recipe, world, task, degrees)
    optimizer = build_optimizer(recipe.train.optimizer, engine.module)
    tokens_per_step = recipe.train.global_batch * (training.tokens_per_sample or 1)
    facts = EntryFacts(plan=training.plan, micro_batch=feed.micro_batch, world=world.size)
    entry: Entry = world.lead(lambda: enter_run(store, recipe, found, facts=facts))
    return Session(
        recipe=recipe,
        world=world,
        store=store,
        run=entry.run,
        attempt=entry.attempt,
        changes=entry.changes,
        degrees=degrees,
        task=task,
        engine=engine,
        optimizer=optimizer,
        schedule=build_schedule(
            recipe.train.schedule,
            lr=recipe.train.optimizer.lr,
            steps=steps,
            tokens_per_step=tokens_per_step,
        ),
        feed=feed,
        training=training,
        validation=validation,
        steps=steps,
    )


def find_pattern(feed: Feed, ranks: range) -> SlotPattern | None:
    """The turns of every step that neighbouring ranks read; None where they may be any."""
    if feed.section.pad == "longest":  # micro-batches are made by length
        return None
    num_units = feed.global_batch // feed.micro_batch
    shares = [share_units(num_units, rank=rank, num_processes=feed.world.size) for rank in ranks]
    count = sum(share.count for share in shares)
    return SlotPattern(feed.global_batch, shares[0].first * feed.micro_batch, count * feed.micro_batch)


def _node_ranks(world: World) -> range:
    first = world.rank - world.local_rank
    return range(first, first + world.local_size)


def build_task(recipe: Recipe, reader: SplitReader) -> Task:
    """The task of the recipe's model section for this data."""
    model = recipe.model
    kinds = {"decoder": model.decoder, "huggingface": model.huggingface, "python": model.python}
    kind = next((name for name, value in kinds.items() if value is not None), model.plugin)
    if kind is None:
        raise RecipeError("model: give one of decoder, huggingface, python, plugin")
    task: Task = load_plugin("task", kind)(model, reader.facts)
    return task


def count_steps(recipe: Recipe, reader: SplitReader) -> int:
    """Step at which the run ends; slots that are left out do not change it."""
    train = recipe.train
    if train.steps is not None:
        return train.steps
    if train.epochs is not None:
        samples = math.ceil(Fraction(repr(train.epochs)) * reader.num_samples)
    else:
        samples = -(-parse_tokens(train.tokens or 0).amount // (reader.tokens_per_sample or 1))
    if not reader.plan.fills_epochs:
        return max(1, -(-samples // train.global_batch))
    epochs, rest = divmod(samples, reader.num_samples)
    return max(1, epochs * -(-reader.num_samples // train.global_batch) + -(-rest // train.global_batch))


def check_lengths(recipe: Recipe, reader: SplitReader) -> None:
    """RecipeError when a length is given in tokens that cannot be counted ahead."""
    train = recipe.train
    if reader.tokens_per_sample is not None:
        return
    warmup, decay = parse_horizon(train.schedule.warmup), parse_horizon(train.schedule.decay or 0)
    lengths = {
        "train.tokens": train.steps is None and train.epochs is None,
        "train.schedule.warmup": warmup.unit == "tokens",
        "train.schedule.decay": decay.unit == "tokens",
    }
    for path in [path for path, is_tokens in lengths.items() if is_tokens]:
        raise RecipeError(
            f"{path}: the tokens of these samples cannot be counted ahead, they are of different length",
            hint="give steps, or use data.reading: packed",
        )


def _open_data(recipe: Recipe) -> tuple[SplitReader, SplitReader | None]:
    store = open_store(recipe.data.store or recipe.run.store)
    training = open_split(
        recipe.data, store, TRAIN, seed=recipe.run.seed, global_batch=recipe.train.global_batch
    )
    check_lengths(recipe, training)
    return training, open_validation(recipe.data, store, seed=recipe.run.seed)


def _build_feed(recipe: Recipe, world: World, reader: SplitReader, found: RunRecord | None) -> Feed:
    train = recipe.train
    micro_batch = choose_micro_batch(
        train.micro_batch,
        global_batch=train.global_batch,
        num_processes=world.size,
        settled=found.micro_batch if found else None,
    )
    num_units = train.global_batch // micro_batch
    return Feed(
        reader=reader,
        world=world,
        share=share_units(num_units, rank=world.rank, num_processes=world.size),
        global_batch=train.global_batch,
        micro_batch=micro_batch,
        seed=recipe.run.seed,
        section=recipe.data,
    )


def _build_engine(recipe: Recipe, world: World, task: Task, degrees: Degrees) -> Engine:
    placement = Placement(
        world=world,
        replicate=degrees.replicate,
        shard=degrees.shard,
        bf16=recipe.train.precision == "bf16",
        recompute=recipe.train.recompute == "full",
        reshard_after_forward=recipe.parallel.reshard_after_forward,
        seed=recipe.run.seed,
    )
    engine: Engine = load_plugin("engine", degrees.engine)(task, placement)
    return engine
