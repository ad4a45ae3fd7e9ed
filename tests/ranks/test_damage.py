"""Full disks and damaged checkpoints: nothing good is lost, and nothing starts anew silently."""

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import missing_tool
from tests.ranks.conftest import Relay, values
from torchrelay.checkpoint.manifest import Commit
from torchrelay.checkpoint.shelf import Shelf
from torchrelay.store.open import open_store

pytestmark = pytest.mark.ranks


@pytest.fixture
def small_disk(tmp_path: Path, words_store: Path) -> Iterator[Relay]:
    """A place whose store lies on a disk of 2 MiB."""
    relay = Relay(tmp_path)
    relay.store.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(relay.store)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        missing_tool("only root may mount a small disk")
    (relay.store / "datasets").symlink_to(words_store / "datasets")
    relay.write_recipe(observe={"sample_log": False})
    yield relay
    subprocess.run(["umount", "-l", str(relay.store)], check=True)


def test_a_disk_that_is_full_at_a_save_costs_no_checkpoint_that_was_there(small_disk: Relay) -> None:
    relay = small_disk
    relay.train("train.steps=5")
    good = relay.newest()
    free = shutil.disk_usage(relay.store).free
    filler = relay.store / "filler"
    filler.write_bytes(bytes(free - 100_000))  # room for records, not for the 240 kB of a checkpoint

    stopped = relay.train("train.steps=15", "checkpoint.on_failure=stop", code=1)
    assert (
        "failed first: rank 0 could not write its part: OSError: [Errno 28] No space left" in stopped.stderr
    )
    assert "hint: free space or mend the store" in stopped.stderr
    assert relay.steps()[-1]["step"] == 10
    assert relay.newest() == good

    # On two processes, of which one may find room: both must agree that the save failed.
    went_on = relay.train("train.steps=15", nproc=2, code=1)
    assert re.search(r"step 10  checkpoint failed: rank [01].* could not write its part", went_on.stdout)
    assert "training ended at step 15, but its state could not be saved" in went_on.stderr
    assert "the newest checkpoint is of step 5" in went_on.stderr
    assert [record["step"] for record in relay.steps()] == list(range(1, 16))
    failures = [record for record in relay.kind("checkpoint") if record["state"] == "failed"]
    assert values(failures, "attempt", "step") == [(2, 10), (3, 10), (3, 15)]
    assert relay.newest() == good
    saved = {path.parts[-3] for path in relay.store.glob("runs/t/checkpoints/step-*/*/*")}
    assert saved == {"step-000000005"}

    filler.unlink()
    relay.train("train.steps=15")
    assert relay.kind("resume")[-1]["step"] == 5
    assert relay.newest()[0] == 15


def cut_short(part: Path) -> None:
    part.write_bytes(part.read_bytes()[:-1])


def flip_byte(part: Path) -> None:
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 1
    part.write_bytes(content)


def remove(part: Path) -> None:
    part.unlink()


def damage_manifest(part: Path) -> None:
    cut_short(part.with_name("manifest.json"))


def damage_commit(part: Path) -> None:
    step = int(part.parts[-3].removeprefix("step-"))
    cut_short(part.parents[2] / f"COMMITTED-{step:012d}-1.json")


# By the step of the checkpoint that is damaged so: what is done, to the part of which rank, and what is said.
DAMAGE: dict[int, tuple[Callable[[Path], None], int, str]] = {
    4: (damage_commit, 0, "the commit record COMMITTED-000000000004-1.json is damaged"),
    6: (damage_manifest, 0, "manifest.json was changed"),
    8: (remove, 0, "rank-00000.bin is missing"),
    10: (flip_byte, 1, "rank-00001.bin: "),
    12: (cut_short, 1, "rank-00001.bin ends early"),
}


@pytest.fixture(scope="module")
def kept(new_relay: Callable[[str], Relay]) -> Relay:
    """Twelve steps on two shards, with every second one kept as a checkpoint."""
    relay = new_relay("kept")
    relay.write_recipe(
        parallel={"engine": "fsdp"},
        train={"schedule": {"kind": "constant"}},
        checkpoint={"every": 2, "keep_last": 10},
    )
    relay.train("train.steps=12", nproc=2)
    return relay


def part_of(relay: Relay, step: int, rank: int) -> Path:
    (part,) = relay.store.glob(f"runs/t/checkpoints/step-{step:09d}/*/rank-{rank:05d}.bin")
    return part


def commits(relay: Relay) -> dict[int, Commit]:
    return {s.commit.step: s.commit for s in Shelf(open_store(str(relay.store)), "t").all()}


def test_every_kind_of_damage_is_named_and_set_aside_and_the_last_good_one_is_used(
    kept: Relay, tmp_path: Path
) -> None:
    relay = kept.copy_to(tmp_path / "copy")
    before = relay.losses()
    for step, (damage, rank, _) in DAMAGE.items():
        damage(part_of(relay, step, rank))
    done = relay.train("train.steps=12", nproc=2)
    resume = relay.kind("resume")[-1]
    assert (resume["step"], resume["checkpoint"]) == (2, commits(relay)[2].checkpoint)
    quarantined = [record for record in relay.kind("checkpoint") if record["state"] == "quarantined"]
    assert [record["step"] for record in quarantined] == sorted(DAMAGE, reverse=True)
    shelf = Shelf(open_store(str(relay.store)), "t")
    reasons = {s.commit.step: s.quarantine_reason for s in shelf.all() if s.is_recorded}
    for record in quarantined:
        message = DAMAGE[record["step"]][2]
        assert message in record["reason"]
        assert message in (reasons[record["step"]] or "")
        assert f"step {record['step']}  checkpoint not usable: " in done.stdout
    assert relay.losses() == before
    parts = list(relay.store.glob("runs/t/checkpoints/step-000000012/*/rank-00000.bin"))
    assert len(parts) == 2  # the damaged one is kept for a look
    assert relay.newest()[0] == 12
    assert relay.newest()[1:] == kept.newest()[1:]


def test_when_no_checkpoint_can_be_trusted_the_list_is_given_and_nothing_starts_anew(
    kept: Relay, tmp_path: Path
) -> None:
    relay = kept.copy_to(tmp_path / "copy")
    for step in range(2, 13, 2):
        flip_byte(part_of(relay, step, 0))
    for _ in range(2):
        failed = relay.train("train.steps=14", nproc=1, code=78)
        assert "run 't' has 6 checkpoints and none can be used:" in failed.stderr
        for step in range(2, 13, 2):
            assert f"  step {step} ({commits(relay)[step].checkpoint}): rank-00000.bin: " in failed.stderr
        assert (
            "hint: restore the files and delete the QUARANTINE records, or start a new run with --fresh"
            in (failed.stderr)
        )
    assert max(record["step"] for record in relay.kind("step")) == 12
    assert {record["attempt"] for record in relay.kind("step")} == {1}
    # The hint works: with the files and without the records it goes on.
    for step in range(2, 13, 2):
        flip_byte(part_of(relay, step, 0))
        (relay.store / f"runs/t/checkpoints/QUARANTINE-{step:012d}-1.json").unlink()
    relay.train("train.steps=13", nproc=1)
    assert relay.kind("resume")[-1]["step"] == 12
