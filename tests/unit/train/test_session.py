from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.unit.checkpoint.support import ALONE
from tests.unit.train import support
from tests.unit.train.support import NUM_TRAIN, recipe
from torchrelay.core.errors import DataError, ModelError, RecipeError
from torchrelay.model.python import PythonTask
from torchrelay.train.session import count_steps, open_session

NUMBERS = f"{support.__name__}:numbers"


@dataclass
class Facts:
    num_samples: int
    tokens_per_sample: int | None


def length(folder: Path, **fields: Any) -> int:
    wanted = recipe(folder, train={"steps": None, **fields})
    return count_steps(wanted, Facts(num_samples=50, tokens_per_sample=16))  # type: ignore[arg-type]


def nothing_to_train() -> Any:
    return support.model().requires_grad_(False)


@pytest.mark.parametrize(
    ("fields", "steps"),
    [
        ({"steps": 7}, 7),
        ({"epochs": 1.0}, 13),
        ({"epochs": 2.0}, 25),
        ({"epochs": 0.01}, 1),
        ({"tokens": 6400}, 100),
        ({"tokens": "6.401k"}, 101),
    ],
)
def test_the_run_ends_at_the_step_that_reaches_its_length(
    tmp_path: Path, fields: dict[str, Any], steps: int
) -> None:
    assert length(tmp_path, **fields) == steps


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
    assert origin.dataset_version == session.training.version


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
