import random
from pathlib import Path

import pytest
import torch

from tests.unit.train.support import open_course, recipe
from torchrelay.checkpoint.manifest import Progress
from torchrelay.checkpoint.shelf import Shelf
from torchrelay.core.errors import CheckpointError, StoreError
from torchrelay.train.loop import train
from torchrelay.train.random_state import seed_process

FIVE = Progress(step=5, samples=20, tokens=20)


def test_a_new_run_has_nothing_to_resume_and_says_nothing(tmp_path: Path) -> None:
    _, course, heard = open_course(recipe(tmp_path))
    assert course.keeper.resume() == Progress(step=0, samples=0, tokens=0)
    assert heard.records == []


def test_a_second_attempt_without_a_checkpoint_says_that_it_begins_at_nought(tmp_path: Path) -> None:
    open_course(recipe(tmp_path))
    _, course, heard = open_course(recipe(tmp_path))
    assert course.keeper.resume().step == 0
    (resume,) = heard.kind("resume")
    assert (resume.checkpoint, resume.reason) == (None, "no checkpoint was committed before")


def test_a_step_is_saved_once(tmp_path: Path) -> None:
    session, course, heard = open_course(recipe(tmp_path))
    course.keeper.save(FIVE)
    course.keeper.save(FIVE)
    assert len(session.shelf.all()) == 1
    (record,) = heard.kind("checkpoint")
    assert (record.step, record.state, record.bytes) == (5, "committed", session.shelf.usable()[0].num_bytes)


def test_older_checkpoints_go_as_the_recipe_says(tmp_path: Path) -> None:
    session, course, heard = open_course(recipe(tmp_path, checkpoint={"keep_last": 2, "keep_every": 3}))
    for step in range(1, 8):
        course.keeper.save(Progress(step=step, samples=4 * step, tokens=4 * step))
    assert [s.commit.step for s in session.shelf.all()] == [3, 6, 7]
    assert [r.step for r in heard.kind("checkpoint") if r.state == "deleted"] == [1, 2, 4, 5]


def test_what_cannot_be_deleted_now_does_not_stop_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, course, heard = open_course(recipe(tmp_path, checkpoint={"keep_last": 1}))
    course.keeper.save(Progress(step=1, samples=4, tokens=4))

    def refuse(self: Shelf, **_: object) -> None:
        raise StoreError("access denied")

    with monkeypatch.context() as patch:
        patch.setattr(Shelf, "prune", refuse)
        course.keeper.save(Progress(step=2, samples=8, tokens=8))
    assert [s.commit.step for s in session.shelf.all()] == [1, 2]
    course.keeper.save(Progress(step=3, samples=12, tokens=12))
    assert [s.commit.step for s in session.shelf.all()] == [3]


@pytest.mark.parametrize("on_failure", ["continue", "stop"])
def test_a_failed_save_is_recorded_and_the_recipe_says_whether_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_failure: str
) -> None:
    session, course, heard = open_course(recipe(tmp_path, checkpoint={"on_failure": on_failure}))
    course.keeper.save(Progress(step=1, samples=4, tokens=4))

    def full(*args: object) -> None:
        raise CheckpointError("no space left")

    monkeypatch.setattr("torchrelay.train.keep.save_checkpoint", full)
    if on_failure == "stop":
        with pytest.raises(CheckpointError, match="no space left"):
            course.keeper.save(FIVE)
    else:
        course.keeper.save(FIVE)
    record = heard.kind("checkpoint")[-1]
    assert (record.step, record.state, record.reason) == (5, "failed", "no space left")
    assert course.keeper.saved_step == 1
    with pytest.raises(CheckpointError, match="the newest checkpoint is of step 1"):
        course.keeper.require_saved(FIVE)


def test_weights_optimizer_and_progress_come_back(tmp_path: Path) -> None:
    session, course, _ = open_course(recipe(tmp_path))
    train(course, course.keeper.resume())
    again, second, heard = open_course(recipe(tmp_path, train={"steps": 9}))
    assert second.keeper.resume() == Progress(step=6, samples=24, tokens=24)
    assert second.keeper.saved_step == 6
    for ours, theirs in zip(
        again.engine.module.parameters(), session.engine.module.parameters(), strict=True
    ):
        assert ours.equal(theirs)
        for key, value in session.optimizer.state[theirs].items():
            assert again.optimizer.state[ours][key].equal(value)
    (resume,) = heard.kind("resume")
    assert (resume.saved_world, resume.world, resume.reason) == (1, 1, "newest good checkpoint")
    assert resume.checkpoint == session.shelf.usable()[0].checkpoint
    assert resume.changes == ["train.steps: 6 → 9"]


def test_generators_of_python_and_numpy_go_on_where_they_were(tmp_path: Path) -> None:
    _, course, _ = open_course(recipe(tmp_path))
    seed_process(123, 0)
    course.keeper.save(FIVE)
    expected = random.random(), torch.rand(1).item()
    _, second, _ = open_course(recipe(tmp_path))
    second.keeper.resume()
    assert (random.random(), torch.rand(1).item()) == expected


def test_a_damaged_checkpoint_is_in_the_journal_with_its_reason(tmp_path: Path) -> None:
    session, course, _ = open_course(recipe(tmp_path))
    for step in (1, 5):
        course.keeper.save(Progress(step=step, samples=4 * step, tokens=4 * step))
    part = session.store.local_path(
        f"{session.shelf.prefix}/{session.shelf.usable()[0].checkpoint}/rank-00000.bin"
    )
    assert part is not None
    part.write_bytes(part.read_bytes()[:-1])
    _, second, heard = open_course(recipe(tmp_path))
    assert second.keeper.resume().step == 1
    (record,) = heard.kind("checkpoint")
    assert (record.step, record.state) == (5, "quarantined")
    assert "rank-00000.bin ends early" in record.reason


def test_a_resume_on_another_number_of_micro_batches_tells_so(tmp_path: Path) -> None:
    _, course, _ = open_course(recipe(tmp_path))
    course.keeper.save(FIVE)
    _, second, heard = open_course(recipe(tmp_path, train={"micro_batch": 4}))
    second.keeper.resume()
    (resume,) = heard.kind("resume")
    assert resume.changes == ["train.micro_batch: 2 → 4", "micro-batch: 2 → 4"]
