"""A process that dies takes the run down within seconds, is named, and leaves nobody behind."""

import json
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.ranks.conftest import DEADLINE_S, Relay, kill, rank_pids
from torchrelay.data.order.order import Order
from torchrelay.data.reading import order_settings
from torchrelay.recipe.load import load_recipe

pytestmark = pytest.mark.ranks

LONG = "train.steps=100000"

# Fails on the rank that reads sample 30, in the middle of the forward pass.
BROKEN = """
import numpy as np
from torch import nn
from torchrelay.data.source import Arrays

class Broken(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(1, 1)])

    def forward(self, batch):
        if self.training and (batch["x"] == 30).any():
            raise LookupError("no entry for timeout")
        return self.blocks[0](batch["x"]).square().squeeze(1)

def model():
    return Broken()

def numbers(split):
    return Arrays({"x": np.arange(400, dtype=np.float32)[:, None]})
"""


def end(process: subprocess.Popen[str], since_s: float) -> list[str]:
    """The last lines that were printed; the launcher must be gone within ten seconds."""
    _, errors = process.communicate(timeout=DEADLINE_S)
    assert time.monotonic() - since_s < 10
    assert process.returncode == 1
    return errors.strip().splitlines()


def test_a_killed_rank_or_launcher_ends_the_run_and_torchrun_goes_on_with_it(relay: Relay) -> None:
    for attempt, rank in ((1, 0), (2, 1)):
        process = relay.start(LONG, nproc=2)
        relay.wait_for_step(process, 10 * attempt)
        killed_s = time.monotonic()
        kill(rank_pids(process)[rank])
        lines = end(process, killed_s)
        assert lines[0] == (
            f"error: rank {rank} on {socket.gethostname()} failed first: "
            f"rank {rank} was killed by SIGKILL (signal 9)"
        )
        assert lines[2].startswith("hint: out of memory?")
        log = Path(lines[-1].removeprefix("log: "))
        assert log.name == f"rank-0000{rank}.log"
        assert log.exists()
        relay.wait_until_gone()
        error = relay.kind("error")[-1]
        assert (error["rank"], error["attempt"]) == (rank, attempt)
        assert "killed by SIGKILL" in error["message"]
        assert (
            json.loads(relay.run("status", "t", "--store", str(relay.store), "--json").stdout)["state"]
            == "failed"
        )

    process = relay.start(LONG, nproc=2)
    reached = relay.wait_for_step(process, 30)
    kill(process.pid)
    process.communicate(timeout=DEADLINE_S)
    relay.wait_until_gone()

    words = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "torchrelay.train", "recipe.yaml"]
    settings = [LONG.replace("100000", str(reached + 10)), f"run.store={relay.store}"]
    done = subprocess.run(
        [sys.executable, *words, *(word for s in settings for word in ("--set", s))],
        cwd=relay.folder,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    resumes = relay.kind("resume")
    assert [record["attempt"] for record in resumes] == [2, 3, 4]
    assert resumes[-1]["step"] >= reached - 10
    assert relay.kind("stop")[-1]["step"] == reached + 10
    assert [record["step"] for record in relay.steps()] == list(range(1, reached + 11))
    ids = relay.sample_ids()
    assert ids == relay.planned_ids(steps=reached + 10)


@pytest.mark.parametrize("engine", ["ddp", "fsdp"])
def test_an_error_of_the_model_is_told_with_its_rank_and_line_and_not_the_echo(
    relay: Relay, engine: str
) -> None:
    (relay.folder / "broken.py").write_text(BROKEN)
    relay.write_recipe(
        model={"decoder": None, "python": "broken:model"},
        data={"dataset": None, "sequence_length": None, "source": "broken:numbers"},
        train={"micro_batch": 6},
    )
    # Sample 30 is read where the order says: in which step, and by which of the two ranks.
    section = load_recipe(str(relay.folder / "recipe.yaml")).data
    ids = Order([400], order_settings(section, "train", 7)).samples(np.arange(400)).sample_ids.tolist()
    step, guilty = ids.index(30) // 12 + 1, ids.index(30) % 12 // 6
    began_s = time.monotonic()
    failed = relay.train(f"parallel.engine={engine}", nproc=2, code=1)
    assert time.monotonic() - began_s < DEADLINE_S / 2
    lines = failed.stderr.strip().splitlines()
    assert lines[0] == (
        f"error: rank {guilty} on {socket.gethostname()} failed first: LookupError: no entry for timeout"
    )
    line = BROKEN.splitlines().index('            raise LookupError("no entry for timeout")') + 1
    assert lines[1] == f'File "{relay.folder / "broken.py"}", line {line}, in forward'
    assert lines[-1].endswith(f"rank-0000{guilty}.log")
    assert "lost contact" not in failed.stderr
    assert step > 1
    assert relay.kind("step")[-1]["step"] == step - 1
    error = relay.kind("error")[-1]
    assert (error["error"], error["rank"]) == ("LookupError", guilty)
    assert re.search(r"broken\.py", error["traceback"])
    relay.wait_until_gone()


def test_a_reader_of_the_output_that_leaves_does_not_stop_the_training(relay: Relay) -> None:
    process = relay.start("train.steps=30", "observe.print_every=0.001s")
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(timeout=DEADLINE_S) == 0
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.stderr.close()
    assert relay.kind("stop")[-1]["reason"] == "finished"
    assert (relay.store / "final-models/t/model.safetensors").exists()
