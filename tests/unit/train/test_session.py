from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.checkpoint.support import ALONE
from tests.unit.train import support
from tests.unit.train.support import NUM_TRAIN, recipe
from torchrelay.core.errors import DataError, ModelError, RecipeError
from torchrelay.data.order.course import Plan
from torchrelay.data.order.history import Source
from torchrelay.data.recipe_plan import plan_once
from torchrelay.model.python import PythonTask
from torchrelay.train.session import check_lengths, count_steps, open_session

NUMBERS = f"{support.__name__}:numbers"


@dataclass
class Facts:
    num_samples: int
    tokens_per_sample: int | None
    plan: Plan


def length(folder: Path, *, stop: bool = False, **fields: Any) -> int:
    wanted = recipe(folder, train={"steps": None, **fields})
    plan = replace(plan_once([Source("d", "v", 50)], seed=1), fills_epochs=stop)
    return count_steps(wanted, Facts(num_samples=50, tokens_per_sample=16, plan=plan))  # type: ignore[arg-type]


def nothing_to_train() -> Any:
    return support.model().requires_grad_(False)


@pytest.mark.parametrize(
    ("fields", "steps"),
    [
        ({"steps": 7}, 7),
        ({"epochs": 1.0}, 13),
        ({"epochs": 2.0}, 25),
        ({"epochs": 0.01}, 1),
        ({"epochs": 1.1}, 14),
        ({"epochs": 0.56, "global_batch": 28}, 1),
        ({"tokens": 6400}, 100),
        ({"tokens": "6.401k"}, 101),
    ],
)
def test_the_run_ends_at_the_step_that_reaches_its_length(
    tmp_path: Path, fields: dict[str, Any], steps: int
) -> None:
    assert length(tmp_path, **fields) == steps


@pytest.mark.parametrize(
    ("fields", "steps"),
    [({"epochs": 2.0}, 26), ({"epochs": 2.5}, 33), ({"tokens": 16 * 101}, 27), ({"steps": 7}, 7)],
)
def test_epochs_that_end_with_a_step_are_counted_so(
    tmp_path: Path, fields: dict[str, Any], steps: int
) -> None:
    assert length(tmp_path, stop=True, **fields) == steps


@pytest.mark.parametrize(
    ("train", "path"),
    [
        ({"steps": None, "tokens": "1M"}, "train.tokens"),
        ({"schedule": {"warmup": "2k tokens"}}, "train.schedule.warmup"),
        ({"schedule": {"decay": "2k tokens"}}, "train.schedule.decay"),
    ],
)
def test_a_length_in_tokens_needs_samples_of_equal_length(
    tmp_path: Path, train: dict[str, Any], path: str
) -> None:
    plan = plan_once([Source("d", "v", 50)], seed=1)
    wanted = recipe(tmp_path, train=train)
    check_lengths(wanted, Facts(num_samples=50, tokens_per_sample=16, plan=plan))  # type: ignore[arg-type]
    with pytest.raises(RecipeError, match=f"{path}: the tokens of these samples cannot be counted ahead"):
        check_lengths(wanted, Facts(num_samples=50, tokens_per_sample=None, plan=plan))  # type: ignore[arg-type]


def test_everything_is_built_and_the_run_is_entered(tmp_path: Path) -> None:
    session = open_session(recipe(tmp_path), ALONE, fresh=False)
    assert (session.run.run, session.attempt, session.changes, session.steps) == ("t", 1, [], 6)
    assert isinstance(session.task, PythonTask)
    assert (session.feed.micro_batch, session.feed.share.count) == (2, 2)
    assert session.training.num_samples == NUM_TRAIN
    assert session.shelf.prefix == "runs/t/checkpoints"
    origin = session.origin()
    assert (origin.run, origin.attempt, origin.world, origin.engine, origin.micro_batch) == (
        "t",
        1,
        1,
        "ddp",
        2,
    )
    assert session.training.position(3).global_slot == 12


def test_a_run_keeps_the_micro_batch_that_it_settled_on(tmp_path: Path) -> None:
    first = open_session(recipe(tmp_path), ALONE, fresh=False)
    again = open_session(recipe(tmp_path, train={"micro_batch": "auto"}), ALONE, fresh=False)
    assert again.feed.micro_batch == first.feed.micro_batch == 2
    assert again.attempt == 2


def test_a_source_without_validation_trains_without_it(tmp_path: Path) -> None:
    wanted = recipe(tmp_path, data={"source": f"{support.__name__}:only_training"})
    assert open_session(wanted, ALONE, fresh=False).validation is None


@pytest.mark.parametrize(
    ("sections", "error", "message"),
    [
        ({"model": {"python": f"{__name__}:nothing_to_train"}}, ModelError, "no parameter to train"),
        ({"model": {"python": f"{__name__}:missing"}}, RecipeError, "has no 'missing'"),
        ({"model": {"python": None, "plugin": "nope"}}, RecipeError, "there is no task named 'nope'"),
        ({"data": {"source": None, "dataset": "nope"}}, DataError, "there is no dataset 'nope'"),
        ({"parallel": {"shard": 2}}, RecipeError, "but there are 1 processes"),
    ],
)
def test_what_cannot_work_is_found_before_anything_is_written(
    tmp_path: Path, sections: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        open_session(recipe(tmp_path, **sections), ALONE, fresh=False)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
