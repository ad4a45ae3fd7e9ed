import random
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.unit.train import support
from tests.unit.train.support import NUM_TRAIN, Heard, open_course, recipe
from torchrelay.checkpoint.manifest import Progress
from torchrelay.checkpoint.shelf import Shelf
from torchrelay.core.errors import CheckpointError, DataError, NumericsError, StoreError
from torchrelay.train.loop import train
from torchrelay.train.random_state import seed_process
from torchrelay.train.session import Session

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


# What a run reads over its attempts, from its sample log: numbers 0 … 23, seed 7.

NUMBERS = f"{support.__name__}:numbers"


def run(
    folder: Path, *, steps: int | None = None, batch: int = 4, **data: Any
) -> tuple[Session, Heard, list[int]]:
    """Train to the end; returns the sample ids of this attempt."""
    length = {"steps": steps} if steps else {"steps": None, "epochs": 2.0}
    wanted = recipe(
        folder,
        data={"source": NUMBERS, **data},
        train={**length, "global_batch": batch, "micro_batch": 1},
    )
    session, course, heard = open_course(wanted)
    train(course, course.keeper.resume())
    logged: Any = course.samples
    return session, heard, [i for record in logged.records for i in record.ids]


def test_epochs_that_end_with_a_step_train_on_every_sample_once(tmp_path: Path) -> None:
    """24 samples in steps of 5: the fifth step of an epoch has four."""
    session, heard, ids = run(tmp_path, batch=5, epoch_end="stop")
    assert sorted(ids[:24]) == sorted(ids[24:]) == list(range(NUM_TRAIN))
    assert [record.samples for record in heard.kind("step")] == [5, 10, 15, 20, 24, 29, 34, 39, 44, 48]
    assert heard.kind("step")[-1].tokens == 48
    assert session.training.position(10).global_slot == 48


def test_the_last_step_of_an_epoch_weighs_its_samples_alone(tmp_path: Path) -> None:
    """The mean is over the four samples that there are."""
    session, course, heard = open_course(
        recipe(tmp_path, data={"epoch_end": "stop"}, train={"steps": 5, "global_batch": 5, "micro_batch": 5})
    )
    train(course, course.keeper.resume())
    batch = next(session.feed.stream(5, 5))[0]
    units, targets = session.feed.units(5, [batch])
    assert (targets, units[0].weight, len(batch.sample_ids)) == (4, 1 / 4, 4)


def test_a_cut_run_goes_on_with_the_next_sample_and_keeps_its_count(tmp_path: Path) -> None:
    _, _, whole = run(tmp_path / "whole", batch=5, epoch_end="stop")
    _, _, first = run(tmp_path / "cut", steps=7, batch=5, epoch_end="stop")
    _, heard, second = run(tmp_path / "cut", batch=5, epoch_end="stop")
    assert first + second == whole
    assert heard.kind("resume")[0].samples == 34
    assert heard.kind("step")[-1].samples == 48


def test_the_journal_tells_with_every_checkpoint_where_the_data_is(tmp_path: Path) -> None:
    _, heard, _ = run(tmp_path, batch=5, epoch_end="stop")
    assert [(r.step, r.slot, r.parts[0]["samples"], r.parts[0]["epoch"]) for r in heard.kind("data")] == [
        (2, 10, 10, 0),
        (4, 20, 20, 0),
        (6, 29, 29, 1),
        (8, 39, 39, 1),
        (10, 48, 48, 2),
    ]
    assert {r.parts[0]["dataset"] for r in heard.kind("data")} == {NUMBERS}


def test_slots_that_are_skipped_on_resume_are_those_still_to_come(tmp_path: Path) -> None:
    _, _, whole = run(tmp_path / "whole", steps=12)
    run(tmp_path / "cut", steps=3)
    _, heard, ids = run(tmp_path / "cut", steps=6, skip=["5..8", "10..14", "17..18"])
    assert ids == [whole[slot] for slot in (14, 15, 16, *range(18, 27))]
    assert [record.samples for record in heard.kind("step")] == [16, 20, 24]
    assert heard.kind("data")[-1].slot == 27
    _, _, ids = run(tmp_path / "cut", steps=7, skip=["5..8"])
    assert ids == whole[27:31]


def test_a_bad_batch_can_be_left_out_by_what_the_error_says(tmp_path: Path) -> None:
    model = {"options": {"bad": 5.0}}

    def attempt(**data: Any) -> None:
        _, course, _ = open_course(recipe(tmp_path, model=model, data=data))
        train(course, course.keeper.resume())

    with pytest.raises(NumericsError) as caught:
        attempt()
    skip = caught.value.hint.split("data.skip: [")[1].split("]")[0].strip('"')
    attempt(skip=[skip])


def versioned(split: str) -> Any:
    return support.numbers(split, version=Path("version.txt").read_text(), count=24)


def test_another_version_is_refused_until_it_is_declared_and_then_read_from_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    source = f"{__name__}:versioned"
    Path("version.txt").write_text("one")
    _, _, old = run(tmp_path, steps=3, source=source)
    Path("version.txt").write_text("two")
    with pytest.raises(DataError, match="has read version one .* is version two") as caught:
        run(tmp_path, steps=9, source=source)
    assert "data.migrate_from: one" in caught.value.hint
    session, _, new = run(tmp_path, steps=9, source=source, migrate_from="one")
    assert [i - NUM_TRAIN for i in new[:12]] == old
    assert sorted(new) == list(range(NUM_TRAIN, 2 * NUM_TRAIN))
    assert [segment.start for segment in session.training.position(9).segments] == [0, 12]
    _, _, later = run(tmp_path, steps=10, source=source)  # once done, it need not be said again
    assert len(later) == 4
