"""Asked to stop, a run saves and says 75; started again it goes on, and ends where it would have ended."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.ranks.conftest import DEADLINE_S, Relay, rank_pids, values

pytestmark = pytest.mark.ranks

LENGTH = "train.steps=240"
# No save but the one at the end and those that were asked for.
NEVER = "checkpoint.every=100000"

STUCK = """
import time
from pathlib import Path
import numpy as np
import torch
from torch import nn
from torchrelay.data.source import Arrays

class Stuck(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(1, 1)

    def forward(self, batch):
        if self.training and (batch["x"] == 30).any():
            Path("stuck").touch()
            time.sleep(600)
        return self.layer(batch["x"]).square().squeeze(1)

def model():
    return Stuck()

def numbers(split):
    return Arrays({"x": np.arange(40, dtype=np.float32)[:, None]})
"""


@pytest.fixture(scope="module")
def whole(new_relay: Callable[[str], Relay]) -> Relay:
    """Never asked to stop."""
    relay = new_relay("whole")
    relay.train(LENGTH, NEVER, nproc=2)
    return relay


def request_stop(relay: Relay, ask: Callable[[subprocess.Popen[str]], None], step: int) -> tuple[str, str]:
    """Start, wait for `step`, ask; gives what was printed, and what was printed as errors."""
    process = relay.start(LENGTH, NEVER, nproc=2)
    relay.wait_for_step(process, step)
    ask(process)
    out, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 75, f"{out}\n{errors}\n{relay.logs()}"
    relay.wait_until_gone()
    return out, errors


def test_every_way_of_asking_saves_the_last_step_and_the_run_ends_bitwise_where_it_would_have(
    relay: Relay, whole: Relay
) -> None:
    asks: list[Callable[[subprocess.Popen[str]], None]] = [
        lambda launcher: launcher.send_signal(signal.SIGTERM),
        lambda launcher: launcher.send_signal(signal.SIGINT),
        lambda launcher: os.kill(rank_pids(launcher)[1], signal.SIGTERM),
    ]
    reached = 0
    for attempt, ask in enumerate(asks, start=1):
        out, errors = request_stop(relay, ask, reached + 4)
        told = "\nstopping after this step, then saving; a second request ends at once\n"
        assert errors == (told if attempt < 3 else "")  # the launcher knows nothing of the third
        stop = relay.kind("stop")[-1]
        assert (stop["reason"], stop["exit_code"], stop["attempt"]) == ("asked to stop", 75, attempt)
        assert f"stopped at step {stop['step']} as asked" in out
        assert stop["step"] == relay.kind("step")[-1]["step"] == relay.newest()[0]
        reached = stop["step"]
    relay.train(LENGTH, NEVER, nproc=2)
    stops = [record["step"] for record in relay.kind("stop")]
    assert [record["step"] for record in relay.kind("resume")] == stops[:-1]
    assert [record["step"] for record in relay.kind("step")] == list(range(1, 241))
    assert relay.losses() == whole.losses()
    assert relay.sample_ids() == whole.sample_ids()
    assert relay.newest() == whole.newest()


def test_a_run_that_hangs_refuses_a_second_start_and_a_second_interrupt_ends_it_at_once(
    relay: Relay,
) -> None:
    (relay.folder / "stuck_model.py").write_text(STUCK)
    relay.write_recipe(
        model={"decoder": None, "python": "stuck_model:model"},
        data={"dataset": None, "sequence_length": None, "source": "stuck_model:numbers"},
    )
    process = relay.start(nproc=2)
    deadline = time.monotonic() + DEADLINE_S
    while not (relay.folder / "stuck").exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)

    refused = relay.train(code=78)
    assert "run 't' is already running here as process" in refused.stderr
    assert "hint: stop it first" in refused.stderr
    assert relay.attempts() == ["0001.json"]

    process.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=0.5)  # the ranks cannot save: they hang
    process.send_signal(signal.SIGINT)
    asked_s = time.monotonic()
    process.communicate(timeout=DEADLINE_S)
    assert time.monotonic() - asked_s < 5
    assert process.returncode == 1
    relay.wait_until_gone()


@pytest.fixture(scope="module")
def short(new_relay: Callable[[str], Relay]) -> Relay:
    """A run of six steps that finished."""
    relay = new_relay("short")
    relay.train("train.steps=6")
    return relay


def test_a_finished_run_started_again_says_done_and_trains_nothing(short: Relay, tmp_path: Path) -> None:
    relay = short.copy_to(tmp_path / "copy")
    before = relay.newest()
    done = relay.train("train.steps=6")
    assert "run t is done: 6 steps" in done.stdout
    assert [record["attempt"] for record in relay.kind("step")] == [1] * 6
    assert relay.newest() == before
    stops = relay.kind("stop")
    assert values(stops, "reason", "attempt") == [("finished", 1), ("finished", 2)]


def test_a_fresh_start_is_another_run_which_a_plain_start_then_lengthens(
    short: Relay, tmp_path: Path
) -> None:
    relay = short.copy_to(tmp_path / "copy")
    relay.train("train.steps=4", fresh=True)
    assert [record["step"] for record in relay.kind("step", "t-2")] == [1, 2, 3, 4]
    assert relay.losses("t-2")[0] == relay.losses("t")[0]
    relay.train("train.steps=7")
    assert [record["step"] for record in relay.kind("step", "t-2")] == [1, 2, 3, 4, 5, 6, 7]
    (resume,) = relay.kind("resume", "t-2")
    assert (resume["step"], resume["attempt"]) == (4, 2)
    assert "train.steps: 4 → 7" in resume["changes"]
    assert relay.attempts("t") == ["0001.json"]
    assert relay.attempts("t-2") == ["0001.json", "0002.json"]
    assert sorted(path.name for path in relay.store.glob("final-models/*")) == ["t", "t-2"]


def test_a_changed_recipe_is_refused_with_what_may_change_listed_apart_and_nothing_written(
    short: Relay, tmp_path: Path
) -> None:
    relay = short.copy_to(tmp_path / "copy")
    before = relay.records()
    refused = relay.train("train.steps=9", "train.optimizer.lr=0.1", "checkpoint.every=2", code=78)
    lines = refused.stderr.splitlines()
    forbidden, allowed = lines.index("  cannot change within a run:"), lines.index("  may change:")
    assert lines[forbidden + 1 : allowed] == ["    train.optimizer.lr: 0.003 -> 0.1"]
    assert lines[allowed + 1].startswith("    run.store: ")  # the copy lies elsewhere
    assert lines[allowed + 2 : allowed + 4] == [
        "    train.steps: 6 -> 9",
        "    checkpoint.every: 5 steps -> 2 steps",
    ]
    assert "hint: undo these changes, start anew with --fresh, or change run.name" in refused.stderr
    assert relay.attempts() == ["0001.json"]
    assert relay.records() == before


def test_another_version_of_the_dataset_is_refused_and_nothing_written(short: Relay, tmp_path: Path) -> None:
    relay = short.copy_to(tmp_path / "copy")
    refused = relay.train("train.steps=9", "data.dataset=other", code=78)
    assert "the run has read version" in refused.stderr
    assert "now other is version" in refused.stderr
    assert "hint: pin the old one with NAME@" in refused.stderr
    assert "data.migrate_from: " in refused.stderr
    assert relay.attempts() == ["0001.json"]
    relay.train("train.steps=7", "data.dataset=words@1")  # another name for the same version is no change
    assert relay.kind("step")[-1]["step"] == 7
