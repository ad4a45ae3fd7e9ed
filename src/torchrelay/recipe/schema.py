"""The recipe: the only place where a run is configured.

Every field carries its meaning, unit and range as a docstring; the reference page and the
`--help` of the fields are generated from them. Fields made with `safe(...)` may change between
the attempts of one run.
"""

from typing import Any, Literal

from pydantic import Field

from torchrelay.core.place import DEFAULT_STORE
from torchrelay.core.units import Every
from torchrelay.recipe.data_schema import DataSection
from torchrelay.recipe.model_schema import ModelSection
from torchrelay.recipe.types import Interval, Pair, PositiveInt, Seconds, Section, safe


class RunSection(Section):
    """What the run is called and where it is kept."""

    name: str = Field(pattern=r"^[a-zA-Z0-9][a-zA-Z0-9._-]{0,99}$")
    """Letters, digits, `.`, `_`, `-`. Starting a second run of this name resumes the first."""
    store: str = safe(DEFAULT_STORE)
    """URL of the store (`file://`, `s3://`) or a folder, that holds runs, datasets and final models."""
    seed: int = Field(1, ge=0, lt=2**63)
    """Decides the initial weights, the order of the data and all randomness in the model."""


class OptimizerSection(Section):
    """How weights are updated."""

    name: str = "adamw"
    """`adamw`, `sgd`, `lion`, or `package.module:Class` of any torch optimizer."""
    lr: float = Field(3e-4, gt=0)
    """Peak learning rate."""
    weight_decay: float = Field(0.1, ge=0)
    """Applied to parameters with two or more dimensions."""
    betas: Pair = (0.9, 0.95)
    """Averaging factors of `adamw` and `lion`."""
    eps: float = Field(1e-8, gt=0)
    """Added to the denominator of `adamw`."""
    momentum: float = Field(0.0, ge=0, lt=1)
    """Momentum of `sgd`."""
    options: dict[str, Any] = Field(default_factory=dict)
    """More keyword arguments of the optimizer."""


class ScheduleSection(Section):
    """How the learning rate moves over the run."""

    kind: Literal["constant", "cosine", "linear", "wsd"] = "cosine"
    """After the warm-up: stay, fall as a cosine, fall in a line, or stay and then fall (wsd)."""
    warmup: int | str = 0
    """Steps (100, "100 steps") or tokens ("2M tokens") from zero to the peak."""
    decay: int | str | None = None
    """Steps or tokens of the fall. Default: all after the warm-up; wsd: a tenth of the run."""
    final: float = Field(0.1, ge=0, le=1)
    """Share of the peak that is left at the end."""


class TrainSection(Section):
    """The work: how long, how much a step, how precise."""

    steps: PositiveInt | None = safe(None)
    """Length of the run in optimizer updates; give one of steps, epochs, tokens."""
    epochs: float | None = safe(None, gt=0)
    """Length in passes over the training split."""
    tokens: int | str | None = safe(None)
    """Length in tokens, such as "300M"; rounded up to whole steps."""
    global_batch: PositiveInt
    """Samples of one step, whatever the number of processes."""
    micro_batch: PositiveInt | Literal["auto"] = safe("auto")
    """Samples of one forward pass; divides `global_batch`. auto: one micro-batch a process at the
    first start, kept for the run."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """Arithmetic of forward and backward; weights and optimizer stay in fp32."""
    optimizer: OptimizerSection = OptimizerSection()
    """How weights are updated."""
    schedule: ScheduleSection = ScheduleSection()
    """How the learning rate moves."""
    clip_norm: float | None = Field(1.0, gt=0)
    """Largest global norm of the gradients; null never clips."""
    recompute: Literal["none", "full"] = safe("none")
    """full: each block's activations are computed again in the backward pass, which saves memory."""
    validate_every: Interval | None = safe(None)
    """How often the validation split is measured, "500 steps" or "10min". Default: only before the
    first step and at the end."""
    validation_samples: PositiveInt | Literal["all"] = safe("all")
    """Samples of the validation split that are measured, from its start."""


class ParallelSection(Section):
    """How the model is spread over the processes: replicate × shard = processes."""

    engine: Literal["auto", "ddp", "fsdp"] = safe("auto")
    """ddp: every process holds the model. fsdp: weights, gradients and optimizer are sharded.
    auto: fsdp when `shard` is given and not 1, else ddp."""
    shard: PositiveInt | Literal["auto"] = safe("auto")
    """Processes that share one copy of the model (fsdp). auto: all that `replicate` leaves."""
    replicate: PositiveInt | Literal["auto"] = safe("auto")
    """Copies of the model. auto: all that `shard` leaves."""
    reshard_after_forward: bool = safe(True)
    """fsdp: free gathered weights after forward (less memory, one more gather)."""
    timeout: Seconds = safe(600.0, gt=0)
    """Longest wait for other processes in one exchange."""


class CheckpointSection(Section):
    """When state is saved, and which saves are kept."""

    every: Interval = safe(Every(500, "steps"))
    """How often: "500 steps" or "10min". The end of the run is always saved."""
    keep_last: PositiveInt = safe(3)
    """Newest checkpoints that are kept."""
    keep_every: PositiveInt | None = safe(None)
    """Checkpoints whose step is a multiple of this are kept for good."""
    on_failure: Literal["continue", "stop"] = safe("continue")
    """What training does when a save fails (disk full, store away); the previous one stays either way."""


class ObserveSection(Section):
    """What is recorded beyond the journal's step records."""

    sample_log: bool = safe(False)
    """Record the sample ids that every process used in every step (large)."""
    print_every: Seconds = safe(10.0, gt=0)
    """Seconds between lines where the output is no terminal."""


class Recipe(Section):
    """One run, from data to final model."""

    run: RunSection
    """What the run is called and where it is kept."""
    model: ModelSection
    """What is trained."""
    data: DataSection
    """What is learned from."""
    train: TrainSection
    """The work."""
    parallel: ParallelSection = ParallelSection()
    """How the model is spread."""
    checkpoint: CheckpointSection = CheckpointSection()
    """When state is saved."""
    observe: ObserveSection = ObserveSection()
    """What is recorded."""
