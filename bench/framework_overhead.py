"""What a framework costs per step: CPU time beyond a hand-written loop on the same tiny model.

A perceptron 64-64-64-10 with batches of 8, one process, one thread. Every contender trains the
same module with AdamW on the same in-memory data and reads the loss of every step:

    bare        a hand-written loop: index, forward, backward, step, zero_grad
    torchrelay  its whole loop: order, agreement, gradient norm, schedule, a journal record a step
    accelerate  Accelerator.prepare(model, optimizer), accelerator.backward
    fabric      Fabric.setup(model, optimizer), fabric.backward

Each runs in a fresh process, in turn, several rounds; CPU time (`process_time`) of 1,500 steps
after 200 to warm up. Printed: the median of all rounds and the difference to bare, round by round.

    python bench/framework_overhead.py [--rounds 5]
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

STEPS, WARMUP, BATCH, SAMPLES = 1500, 200, 8, 4096
CONTENDERS = ("bare", "torchrelay", "accelerate", "fabric")
RECIPE = """
run: {{name: bench, store: {store}}}
model: {{python: "framework_overhead:model"}}
data: {{source: "framework_overhead:source"}}
train:
  steps: {steps}
  global_batch: {batch}
  clip_norm: null
  optimizer: {{lr: 1e-3, weight_decay: 0.0}}
checkpoint: {{every: 1000000}}
"""


class Perceptron(nn.Module):
    """The module that all train."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)
        )

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """The mean loss of the batch."""
        return F.cross_entropy(self.layers(batch["x"]), batch["y"])


def arrays() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {
        "x": random.standard_normal((SAMPLES, 64)).astype(np.float32),
        "y": random.integers(0, 10, SAMPLES),
    }


def model() -> nn.Module:
    return Perceptron()


def source(split: str) -> object:
    from torchrelay.data.source import Arrays

    return Arrays(arrays())


def batches() -> Callable[[int], dict[str, torch.Tensor]]:
    """What a hand-written loop does for data: a shuffled index, taken in turn."""
    tensors = {name: torch.from_numpy(array) for name, array in arrays().items()}
    order = torch.randperm(SAMPLES)

    def batch(step: int) -> dict[str, torch.Tensor]:
        chosen = order[step * BATCH % SAMPLES :][:BATCH]
        return {name: tensor[chosen] for name, tensor in tensors.items()}

    return batch


def loop(
    module: nn.Module, optimizer: torch.optim.Optimizer, backward: Callable[[torch.Tensor], object]
) -> Callable[[int], None]:
    read = batches()

    def step(number: int) -> None:
        loss = module(read(number))
        backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        loss.item()

    return step


def bare() -> Callable[[int], None]:
    module = model()
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3, weight_decay=0.0, fused=True)
    return loop(module, optimizer, lambda loss: loss.backward())


def accelerate() -> Callable[[int], None]:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    module = model()
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3, weight_decay=0.0, fused=True)
    return loop(*accelerator.prepare(module, optimizer), accelerator.backward)


def fabric() -> Callable[[int], None]:
    from lightning_fabric import Fabric

    made = Fabric(accelerator="cpu", devices=1)
    module = model()
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3, weight_decay=0.0, fused=True)
    return loop(*made.setup(module, optimizer), made.backward)


def torchrelay() -> Callable[[int], None]:
    """Steps of a real session, with its journal on disk."""
    from contextlib import ExitStack

    from torchrelay.checkpoint.manifest import Progress
    from torchrelay.core.environment import read_environment
    from torchrelay.observe.journal import open_journal
    from torchrelay.parallel.world import join_world
    from torchrelay.recipe.load import load_recipe
    from torchrelay.train.keep import Keeper
    from torchrelay.train.loop import Course, run_step
    from torchrelay.train.session import open_session
    from torchrelay.train.signal import StopFlag

    folder = Path(tempfile.mkdtemp(prefix="bench-"))
    path = folder / "recipe.yaml"
    path.write_text(RECIPE.format(store=folder / "store", steps=WARMUP + STEPS + 1, batch=BATCH))
    sys.path.insert(0, str(Path(__file__).parent))
    world = ExitStack().enter_context(join_world(read_environment({}), timeout_s=60))
    session = open_session(load_recipe(str(path)), world, fresh=False)
    sink = open_journal(session.store, session.run.run, session.attempt)
    course = Course(
        session=session,
        keeper=Keeper(session=session, sink=sink),
        sink=sink,
        samples=None,
        stop=StopFlag(),
        saved_s=0.0,
        validated_s=0.0,
    )
    stream = session.feed.stream(1, session.steps)
    progress = Progress(step=0, samples=0, tokens=0)

    def step(number: int) -> None:
        nonlocal progress
        progress, _ = run_step(course, progress, stream)

    return step


def measure(contender: str) -> float:
    """CPU microseconds of a step, in this process."""
    torch.set_num_threads(1)
    step = globals()[contender]()
    for number in range(WARMUP):
        step(number)
    begun = time.process_time()
    for number in range(WARMUP, WARMUP + STEPS):
        step(number)
    return (time.process_time() - begun) / STEPS * 1e6


def measure_apart(contender: str) -> float:
    """The same in a fresh process."""
    done = subprocess.run(
        [sys.executable, __file__, "--one", contender],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    return float(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--one", choices=CONTENDERS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one)))
        return
    rounds = [{name: measure_apart(name) for name in CONTENDERS} for _ in range(options.rounds)]
    print(f"CPU µs per step, median of {options.rounds} rounds, torch {torch.__version__}")
    print(f"{'':<12}{'total':>9}{'over bare':>12}{'spread':>20}{'peer / ours':>14}")
    ours = statistics.median(r["torchrelay"] - r["bare"] for r in rounds)
    for name in CONTENDERS:
        extra = [r[name] - r["bare"] for r in rounds]
        median = statistics.median(extra)
        spread = f"{min(extra):+.0f} … {max(extra):+.0f}"
        ratio = f"{median / ours:.1f}" if name in ("accelerate", "fabric") and ours > 0 else ""
        total = statistics.median(r[name] for r in rounds)
        print(f"{name:<12}{total:>9.0f}{median:>+12.0f}{spread:>20}{ratio:>14}")


if __name__ == "__main__":
    main()
