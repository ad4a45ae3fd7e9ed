from typing import Any

import pytest

from torchrelay.recipe.check_data import data_problems, may_count_tokens
from torchrelay.recipe.data_schema import DataSection

MIXTURE = [{"dataset": "a", "weight": 3.0}, {"dataset": "b@2", "weight": 1.0}]


def found(**fields: Any) -> list[str]:
    return [problem.path for problem in data_problems(DataSection.model_validate(fields))]


def point(at: int | str, a: float = 1.0, b: float = 1.0) -> dict[str, Any]:
    return {"at": at, "weights": {"a": a, "b@2": b}}


@pytest.mark.parametrize(
    "fields",
    [
        {"dataset": "a", "skip": ["0..1", "12_000..12_800"], "epoch_end": "stop"},
        {"mixture": MIXTURE, "curriculum": [point(10), point("20 steps", b=0), point("2B tokens")]},
        {"source": "m:f", "options": {"a": 1}},
        {"dataset": "a", "reading": "documents", "pad": "longest", "batch_tokens": 8},
    ],
)
def test_what_can_be_carried_out_has_no_problem(fields: dict[str, Any]) -> None:
    assert found(**fields) == []


@pytest.mark.parametrize(
    ("fields", "paths"),
    [
        ({}, ["data"]),
        ({"dataset": "a", "mixture": MIXTURE}, ["data"]),
        ({"mixture": []}, ["data.mixture"]),
        ({"mixture": [*MIXTURE, {"dataset": "b", "weight": 1.0}]}, ["data.mixture"]),
        ({"mixture": [*MIXTURE, {"dataset": "c", "weight": 1e-9}]}, ["data.mixture"]),
        ({"mixture": MIXTURE, "epoch_end": "stop"}, ["data.epoch_end"]),
        ({"dataset": "a", "reading": "documents", "batch_tokens": 8}, ["data.batch_tokens"]),
        ({"dataset": "a", "reading": "packed", "pad": "longest", "batch_tokens": 8}, ["data.batch_tokens"]),
        ({"dataset": "a", "curriculum": [point(10)]}, ["data.curriculum"]),
        ({"dataset": "a", "skip": ["1..2", "5", "9..9"]}, ["data.skip[1]", "data.skip[2]"]),
        ({"mixture": MIXTURE, "curriculum": [point(0)]}, ["data.curriculum[0].at"]),
        ({"mixture": MIXTURE, "curriculum": [point(9), point(9)]}, ["data.curriculum[1].at"]),
        ({"mixture": MIXTURE, "curriculum": [point("soon")]}, ["data.curriculum[0].at"]),
        ({"mixture": MIXTURE, "curriculum": [point(1, a=-1.0)]}, ["data.curriculum[0].weights"]),
        ({"mixture": MIXTURE, "curriculum": [point(1, a=0, b=0)]}, ["data.curriculum[0].weights"]),
        ({"mixture": MIXTURE, "curriculum": [point(1, a=1e-9)]}, ["data.curriculum[0].weights"]),
        (
            {"mixture": MIXTURE, "reading": "documents", "curriculum": [point("2B tokens")]},
            ["data.curriculum[0].at"],
        ),
        (
            {"mixture": MIXTURE, "curriculum": [{"at": 1, "weights": {"a": 1.0, "b": 1.0}}]},
            ["data.curriculum[0].weights"],
        ),
    ],
)
def test_what_cannot_be_carried_out_is_found(fields: dict[str, Any], paths: list[str]) -> None:
    assert found(**fields) == paths


def test_a_part_that_is_named_twice_is_told_by_its_name() -> None:
    section = DataSection.model_validate({"mixture": [*MIXTURE, {"dataset": "b", "weight": 1.0}]})
    (problem,) = data_problems(section)
    assert "b is in it more than once" in problem.message


def test_tokens_may_be_counted_where_samples_are_windows() -> None:
    assert [may_count_tokens(DataSection(dataset="a", reading=r)) for r in ("auto", "packed", "packs")] == [
        True,
        True,
        False,
    ]
    assert not may_count_tokens(DataSection(source="m:f"))
