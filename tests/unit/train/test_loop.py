import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.unit.train.support import Heard, open_course, recipe
from torchrelay.checkpoint.state import model_state
from torchrelay.core.errors import CheckpointError, ExitCode, NumericsError
from torchrelay.core.record import Record
from torchrelay.train.loop import train

WEIGHT = "model/slope.weight"
SGD = {"name": "sgd", "lr": 0.001, "weight_decay": 0.0}


class Stopping(Heard):
    """Asks the run to stop once a step is recorded."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at
        self.course: Any = None

    def write(self, record: Record) -> None:
        super().write(record)
        if record.kind == "step" and record.step == self.at:  # type: ignore[attr-defined]
            self.course.stop.raised = True


def run(
    folder: Path, *, stop_at: int | None = None, **sections: dict[str, Any]
) -> tuple[Any, Heard, ExitCode]:
    session, course, heard = open_course(recipe(folder, **sections))
    if stop_at is not None:
        heard = Stopping(stop_at)
        heard.course = course
        course.sink = course.keeper.sink = heard
    return course, heard, train(course, course.keeper.resume())


def test_a_run_validates_at_both_ends_saves_in_between_and_says_that_it_finished(tmp_path: Path) -> None:
    course, heard, code = run(tmp_path)
    assert code == ExitCode.DONE
    assert [record.step for record in heard.kind("step")] == list(range(1, 7))
    assert [record.step for record in heard.kind("validation")] == [0, 6]
    assert [r.step for r in heard.kind("checkpoint") if r.state == "committed"] == [2, 4, 6]
    (stop,) = heard.kind("stop")
    assert (stop.step, stop.reason, stop.exit_code) == (6, "finished", 0)
    last = heard.kind("step")[-1]
    assert (last.samples, last.tokens, last.world, last.attempt) == (24, 24, 1, 1)
    assert heard.kind("validation")[1].loss < heard.kind("validation")[0].loss
    assert heard.kind("validation")[0].bits_per_byte is None


def test_the_records_of_the_steps_are_written_out_before_each_checkpoint(tmp_path: Path) -> None:
    course, heard, _ = run(tmp_path)
    saves = [i for i, r in enumerate(heard.records) if r.kind == "checkpoint" and r.state == "committed"]
    assert heard.flushed_at == saves
    assert course.samples.flushed_at == [2, 4, 6]


def test_a_step_updates_with_the_gradient_of_the_mean_over_the_whole_batch(tmp_path: Path) -> None:
    session, course, heard = open_course(
        recipe(tmp_path, train={"steps": 1, "optimizer": SGD, "clip_norm": None})
    )
    before = {name: tensor.clone() for name, tensor in model_state(session.engine.module).items()}
    x = torch.cat([batch.tensors["x"] for batch in next(session.feed.stream(1, 1))])
    weight, bias = (before[name].clone().requires_grad_() for name in (WEIGHT, "model/slope.bias"))
    loss = (x @ weight.T + bias - 2 * x - 1).square().mean()
    grads = torch.autograd.grad(loss, [weight, bias])
    train(course, course.keeper.resume())
    after = model_state(session.engine.module)
    torch.testing.assert_close(after[WEIGHT], (weight - 0.001 * grads[0]).detach())
    (step,) = heard.kind("step")
    assert step.loss == pytest.approx(loss.item())
    assert step.grad_norm == pytest.approx(math.sqrt(sum(float(g.square().sum()) for g in grads)), rel=1e-5)
    assert step.lr == 0.001


def test_clipping_limits_the_update_and_the_record_tells_the_norm_before_it(tmp_path: Path) -> None:
    moved = {}
    for name, limit in (("free", None), ("tight", 0.5)):
        optimizer = {"name": "sgd", "lr": 1.0, "weight_decay": 0.0}
        session, course, heard = open_course(
            recipe(tmp_path / name, train={"steps": 1, "optimizer": optimizer, "clip_norm": limit})
        )
        before = [tensor.detach().clone() for tensor in session.engine.module.parameters()]
        train(course, course.keeper.resume())
        change = [a - b for a, b in zip(before, session.engine.module.parameters(), strict=True)]
        moved[name] = math.sqrt(sum(float(c.detach().double().square().sum()) for c in change))
        norm = heard.kind("step")[0].grad_norm
    assert moved["free"] == pytest.approx(norm, rel=1e-4)
    assert norm > 0.5
    assert moved["tight"] == pytest.approx(0.5, rel=1e-4)


def test_sample_ids_are_those_of_the_plan(tmp_path: Path) -> None:
    course, _, _ = run(tmp_path)
    reader = course.session.training
    planned = reader.locate(np.arange(24)).located.sample_ids.tolist()
    assert [i for record in course.samples.records for i in record.ids] == planned


def test_a_loss_that_is_no_number_stops_before_the_update_and_names_step_and_samples(tmp_path: Path) -> None:
    session, course, heard = open_course(
        recipe(tmp_path, model={"options": {"bad": 5.0}}, train={"micro_batch": 2})
    )
    slots = session.training.locate(np.arange(24)).located.sample_ids.tolist()
    step = slots.index(5) // 4 + 1
    with pytest.raises(NumericsError) as caught:
        train(course, course.keeper.resume())
    assert caught.value.exit_code == ExitCode.NO_PROGRESS
    assert caught.value.message.startswith(f"step {step}: loss nan")
    assert "the update was not applied" in caught.value.message
    named = caught.value.message.split("Samples: ")[1].split(", ")
    starts = (4 * step - 4, 4 * step - 2)
    units = [sorted(slots[start : start + 2]) for start in starts]
    unit = units.index(sorted(map(int, named)))
    skip = f"{starts[unit]}..{starts[unit] + 2}"
    assert f"Slots: {skip}. Samples" in caught.value.message
    assert f'data.skip: ["{skip}"]' in caught.value.hint
    assert "5" in named
    assert [record.step for record in heard.kind("step")] == list(range(1, step))
    assert all(torch.isfinite(parameter).all() for parameter in session.engine.module.parameters())


def test_gradients_that_are_no_numbers_stop_too(tmp_path: Path) -> None:
    session, course, _ = open_course(recipe(tmp_path))

    def poison(grad: torch.Tensor) -> torch.Tensor:
        return grad * float("inf")

    next(session.engine.module.parameters()).register_hook(poison)
    with pytest.raises(NumericsError, match="step 1: loss .*, gradient norm (inf|nan)"):
        train(course, course.keeper.resume())


def test_many_samples_are_named_in_short(tmp_path: Path) -> None:
    wanted = recipe(
        tmp_path,
        model={"options": {"bad": 5.0}},
        data={"options": {"count": 96}},
        train={"global_batch": 96, "micro_batch": 96},
    )
    _, course, _ = open_course(wanted)
    with pytest.raises(NumericsError) as caught:
        train(course, course.keeper.resume())
    assert caught.value.message.endswith("61, 62, 63, … (96 in all)")


@pytest.mark.parametrize("at", [1, 3, 4, 5])
def test_a_request_to_stop_saves_this_very_step_and_exits_75(tmp_path: Path, at: int) -> None:
    # The flag is looked at before a step's record is written, so the next step is the last one.
    _, heard, code = run(tmp_path, stop_at=at)
    last = min(at + 1, 6)
    if last == 6:
        assert code == ExitCode.DONE
        return
    assert code == ExitCode.CHECKPOINTED
    assert heard.kind("step")[-1].step == last
    assert [r.step for r in heard.kind("checkpoint") if r.state == "committed"][-1] == last
    (stop,) = heard.kind("stop")
    assert (stop.step, stop.reason, stop.exit_code) == (last, "asked to stop", 75)


@pytest.mark.parametrize("noise", [False, True], ids=["quiet", "noisy"])
def test_a_stopped_and_resumed_run_is_the_uninterrupted_one_bit_for_bit(tmp_path: Path, noise: bool) -> None:
    model = {"options": {"noise": noise}}
    whole, heard, _ = run(tmp_path / "whole", model=model)
    _, first, _ = run(tmp_path / "cut", stop_at=2, model=model)
    course, second, code = run(tmp_path / "cut", model=model)
    assert code == ExitCode.DONE
    (resume,) = second.kind("resume")
    assert (resume.step, resume.samples, resume.tokens, resume.saved_world) == (3, 12, 12, 1)
    steps = first.kind("step") + second.kind("step")
    assert [(r.step, r.loss, r.lr, r.grad_norm) for r in steps] == [
        (r.step, r.loss, r.lr, r.grad_norm) for r in heard.kind("step")
    ]
    for ours, theirs in zip(
        course.session.engine.module.parameters(), whole.session.engine.module.parameters(), strict=True
    ):
        assert ours.equal(theirs)


def test_a_finished_run_started_again_does_nothing_but_say_so(tmp_path: Path) -> None:
    run(tmp_path)
    _, heard, code = run(tmp_path)
    assert code == ExitCode.DONE
    assert [record.kind for record in heard.records] == ["resume", "stop"]


def test_a_longer_run_goes_on_where_the_shorter_ended(tmp_path: Path) -> None:
    run(tmp_path)
    _, heard, _ = run(tmp_path, train={"steps": 8})
    (resume,) = heard.kind("resume")
    assert resume.changes == ["train.steps: 6 → 8"]
    assert [record.step for record in heard.kind("step")] == [7, 8]


def test_a_shorter_run_is_done_without_going_back(tmp_path: Path) -> None:
    run(tmp_path)
    _, heard, code = run(tmp_path, train={"steps": 3})
    assert code == ExitCode.DONE
    assert [record.step for record in heard.kind("stop")] == [6]


def test_validation_comes_as_often_as_the_recipe_says_and_measures_so_much(tmp_path: Path) -> None:
    _, heard, _ = run(tmp_path, train={"validate_every": 2, "validation_samples": 3})
    assert [record.step for record in heard.kind("validation")] == [0, 2, 4, 6]
    assert {record.samples for record in heard.kind("validation")} == {3}
    _, heard, _ = run(tmp_path / "all", train={"validation_samples": 99})
    assert {record.samples for record in heard.kind("validation")} == {10}


def test_saving_by_the_clock_counts_from_the_last_save(tmp_path: Path) -> None:
    _, heard, _ = run(tmp_path / "often", checkpoint={"every": "0.000001s"})
    assert [r.step for r in heard.kind("checkpoint") if r.state == "committed"] == [1, 2, 3, 4, 5, 6]
    session, course, heard = open_course(recipe(tmp_path / "seldom", checkpoint={"every": "2h"}))
    course.saved_s = math.inf
    train(course, course.keeper.resume())
    assert [r.step for r in heard.kind("checkpoint") if r.state == "committed"] == [6]


def test_a_run_that_cannot_save_its_end_does_not_say_that_it_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object) -> None:
        raise CheckpointError("no space")

    monkeypatch.setattr("torchrelay.train.keep.save_checkpoint", full)
    session, course, heard = open_course(recipe(tmp_path))
    with pytest.raises(CheckpointError, match="ended at step 6, but its state could not be saved"):
        train(course, course.keeper.resume())
    assert [record.step for record in heard.kind("step")] == list(range(1, 7))
    assert [r.state for r in heard.kind("checkpoint")] == ["failed"] * 3
    assert heard.kind("stop") == []
