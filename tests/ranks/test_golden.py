"""The golden rule: killed at any step and resumed, a run ends bitwise where the uninterrupted one ends."""

import random

import pytest

from tests.ranks.conftest import Relay, kill, rank_pids

pytestmark = pytest.mark.ranks

ENGINES = {"ddp": ["parallel.engine=ddp"], "fsdp": ["parallel.engine=fsdp"]}
STEPS = 120
KILLS = 10


def _kill_and_resume(relay: Relay, settings: list[str], seed: int) -> list[int]:
    """Kill a random rank at `KILLS` different steps, resuming after each; returns the steps."""
    choose = random.Random(seed)
    width = (STEPS - 10) // KILLS
    killed = []
    for number in range(KILLS):
        wanted = 3 + number * width + choose.randrange(width - 5)
        process = relay.start(*settings, nproc=2)
        killed.append(relay.wait_for_step(process, wanted))
        kill(choose.choice(rank_pids(process)))
        process.communicate(timeout=60)
        assert process.returncode == 1
    return killed


@pytest.mark.parametrize("engine", ENGINES)
def test_killed_at_ten_random_steps_and_resumed_ends_bitwise_equal(
    relay, tmp_path_factory, words_store, engine
):
    settings = [*ENGINES[engine], f"train.steps={STEPS}", "run.seed=3"]
    killed = _kill_and_resume(relay, settings, seed=len(engine))
    assert len(set(killed)) == KILLS, killed
    relay.train(*settings, nproc=2)

    whole = _other_place(relay, tmp_path_factory.mktemp("whole"))
    whole.train(*settings, nproc=2)

    ours, theirs = relay.checkpoint(), whole.checkpoint()
    assert ours["step"] == theirs["step"] == STEPS
    assert ours["weights_sha256"] == theirs["weights_sha256"]
    assert ours["optimizer_sha256"] == theirs["optimizer_sha256"]
    assert relay.losses() == whole.losses()
    assert relay.sample_ids() == whole.sample_ids()
    resumes = [r["step"] for r in relay.records() if r["kind"] == "resume"]
    assert len(resumes) == KILLS
    assert resumes == sorted(resumes)
    assert all(
        step % 5 == 0 and step >= killed_at - 10 for step, killed_at in zip(resumes, killed, strict=True)
    )


def _other_place(relay: Relay, folder) -> Relay:
    (folder / "store").mkdir()
    (folder / "store" / "datasets").symlink_to((relay.store / "datasets").resolve())
    (folder / "recipe.yaml").write_text((relay.folder / "recipe.yaml").read_text())
    return Relay(folder)
