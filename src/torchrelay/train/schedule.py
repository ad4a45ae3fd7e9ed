"""The learning rate of every step, as a pure function of the step. No state to save."""

import math
from dataclasses import dataclass
from typing import Literal

from torchrelay.recipe.horizon import parse_horizon
from torchrelay.recipe.schema import ScheduleSection


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Warm-up, then a shape; all lengths in steps."""

    kind: Literal["constant", "cosine", "linear", "wsd"]
    peak: float
    final: float
    """Learning rate at and after the last step of the fall."""
    warmup: int
    decay_start: int
    decay_steps: int

    def lr(self, step: int) -> float:
        """Learning rate of the update number `step`, counted from 1."""
        done = step - 1
        if done < self.warmup:
            return self.peak * (done + 1) / (self.warmup + 1)
        if self.kind == "constant" or done <= self.decay_start:
            return self.peak
        share = min(1.0, (done - self.decay_start) / max(1, self.decay_steps))
        if self.kind == "cosine":
            return self.final + (self.peak - self.final) * 0.5 * (1.0 + math.cos(math.pi * share))
        return self.peak + (self.final - self.peak) * share


def build_schedule(section: ScheduleSection, *, lr: float, steps: int, tokens_per_step: int) -> Schedule:
    """The schedule of a run of `steps` updates with peak `lr`."""
    warmup = parse_horizon(section.warmup).steps(tokens_per_step)
    rest = max(0, steps - warmup)
    if section.decay is not None:
        decay = parse_horizon(section.decay).steps(tokens_per_step)
    else:
        decay = max(1, steps // 10) if section.kind == "wsd" else rest
    start = steps - decay if section.kind == "wsd" else warmup
    return Schedule(
        kind=section.kind,
        peak=lr,
        final=lr * section.final,
        warmup=warmup,
        decay_start=max(warmup, start),
        decay_steps=decay,
    )
