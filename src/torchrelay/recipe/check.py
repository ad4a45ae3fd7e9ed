"""Combinations of values that cannot work, found before anything is started. Pure."""

from collections.abc import Iterator
from typing import NamedTuple

from torchrelay.core.errors import RecipeError
from torchrelay.core.plugins import nearest
from torchrelay.recipe.check_data import data_problems, may_count_tokens
from torchrelay.recipe.data_schema import DataSection
from torchrelay.recipe.horizon import parse_horizon, parse_tokens
from torchrelay.recipe.model_schema import DecoderSection, ModelSection
from torchrelay.recipe.problem import Problem
from torchrelay.recipe.schema import (
    OptimizerSection,
    ParallelSection,
    Recipe,
    RunSection,
    TrainSection,
)

OPTIMIZERS = ("adamw", "sgd", "lion")
"""Names of the optimizers that need no module."""


class Degrees(NamedTuple):
    """How the processes are laid out; replicate × shard = processes."""

    engine: str
    replicate: int
    shard: int


def find_problems(recipe: Recipe) -> list[Problem]:
    """Every impossible combination in the recipe, in its order."""
    return [
        *_run_problems(recipe.run),
        *_model_problems(recipe.model),
        *data_problems(recipe.data),
        *_train_problems(recipe.train, recipe.data),
        *_optimizer_problems(recipe.train.optimizer),
        *_parallel_problems(recipe.parallel),
    ]


def _run_problems(run: RunSection) -> Iterator[Problem]:
    if run.store.startswith("memory://"):
        yield Problem("run.store", f"{run.store} ends with each process", "use a folder or s3://")


def _optimizer_problems(optimizer: OptimizerSection) -> Iterator[Problem]:
    if ":" not in optimizer.name and optimizer.name not in OPTIMIZERS:
        close = nearest(optimizer.name, list(OPTIMIZERS))
        yield Problem(
            "train.optimizer.name",
            f"there is no optimizer {optimizer.name!r}{close}",
            f"use {', '.join(OPTIMIZERS)}, or package.module:Class",
        )


def choose_degrees(parallel: ParallelSection, num_processes: int) -> Degrees:
    """Fill in the `auto` degrees for this many processes, or raise RecipeError with the equation."""
    engine = parallel.engine
    if engine == "auto":
        engine = "ddp" if parallel.shard in ("auto", 1) else "fsdp"
    if engine == "ddp":
        shard = 1
        replicate = num_processes if parallel.replicate == "auto" else parallel.replicate
    elif parallel.shard == "auto":
        replicate = 1 if parallel.replicate == "auto" else parallel.replicate
        shard = max(1, num_processes // replicate)
    else:
        shard = parallel.shard
        replicate = max(1, num_processes // shard) if parallel.replicate == "auto" else parallel.replicate
    if replicate * shard != num_processes:
        raise RecipeError(
            f"parallel.replicate {replicate} × parallel.shard {shard} = {replicate * shard}, "
            f"but there are {num_processes} processes",
            hint="change --nproc, or leave one of the two degrees at auto",
        )
    return Degrees(engine, replicate, shard)


def _model_problems(model: ModelSection) -> Iterator[Problem]:
    kinds = ("decoder", "huggingface", "python", "plugin")
    given = [kind for kind in kinds if getattr(model, kind) is not None]
    if len(given) != 1:
        yield Problem("model", f"give exactly one of {', '.join(kinds)}; got {' and '.join(given) or 'none'}")
    if model.options and not (model.python or model.plugin):
        yield Problem("model.options", "only python and plugin take options")
    if model.huggingface and (model.huggingface.path is None) == (model.huggingface.config is None):
        yield Problem("model.huggingface", "give exactly one of path and config")
    if model.python and ":" not in model.python:
        yield Problem("model.python", f"{model.python!r} is not of the form package.module:function")
    if model.decoder:
        yield from _decoder_problems(model.decoder)


def _decoder_problems(decoder: DecoderSection) -> Iterator[Problem]:
    """What can be said without the presets; the decoder itself checks the rest when it is built."""
    missing = [key for key in ("layers", "width", "heads") if getattr(decoder, key) is None]
    if missing and decoder.preset is None:
        yield Problem(
            "model.decoder",
            f"without a preset it needs layers, width and heads; {' and '.join(missing)} missing",
        )
    width, heads, kv_heads = decoder.width, decoder.heads, decoder.kv_heads
    if width and heads and width % heads:
        yield Problem("model.decoder.heads", f"{heads} does not divide model.decoder.width {width}")
    if heads and kv_heads and heads % kv_heads:
        yield Problem("model.decoder.kv_heads", f"{kv_heads} does not divide model.decoder.heads {heads}")


def _train_problems(train: TrainSection, data: DataSection) -> Iterator[Problem]:
    lengths = [key for key in ("steps", "epochs", "tokens") if getattr(train, key) is not None]
    if len(lengths) != 1:
        yield Problem(
            "train",
            f"give exactly one of steps, epochs, tokens; got {' and '.join(lengths) or 'none'}",
            f"--set train.{lengths[0]}=null takes one away" if lengths else "",
        )
    if train.micro_batch != "auto" and train.global_batch % train.micro_batch:
        divisors = [n for n in range(1, train.global_batch + 1) if train.global_batch % n == 0]
        yield Problem(
            "train.micro_batch",
            f"{train.micro_batch} does not divide train.global_batch {train.global_batch}",
            f"use one of {', '.join(map(str, divisors))}",
        )
    if train.epochs is not None and data.mixture is not None:
        yield Problem(
            "train.epochs",
            "the parts of a mixture end their epochs at different times",
            "give steps or tokens",
        )
    counts_tokens = may_count_tokens(data)
    for path, value in (
        ("train.tokens", train.tokens),
        ("train.schedule.warmup", train.schedule.warmup),
        ("train.schedule.decay", train.schedule.decay),
    ):
        yield from _horizon_problems(path, value, counts_tokens=counts_tokens)


def _horizon_problems(path: str, value: int | str | None, *, counts_tokens: bool) -> Iterator[Problem]:
    if value is None:
        return
    try:
        horizon = parse_tokens(value) if path == "train.tokens" else parse_horizon(value)
    except ValueError as error:
        yield Problem(path, str(error))
        return
    if horizon.unit == "tokens" and not counts_tokens:
        yield Problem(path, "tokens can only be counted ahead in the packed reading", "give steps")


def _parallel_problems(parallel: ParallelSection) -> Iterator[Problem]:
    if parallel.engine == "ddp" and parallel.shard not in ("auto", 1):
        yield Problem(
            "parallel.shard", f"engine ddp does not shard, got {parallel.shard}", "use engine: fsdp"
        )
