import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchrelay.core.errors import RecipeError
from torchrelay.recipe.check import choose_degrees, find_problems
from torchrelay.recipe.schema import ParallelSection, Recipe

GOOD = {
    "run": {"name": "a"},
    "model": {"decoder": {"preset": "1m"}},
    "data": {"dataset": "d"},
    "train": {"steps": 10, "global_batch": 12},
}


def found(**sections: dict[str, object]) -> list[str]:
    """Paths of the problems when some sections are replaced."""
    return [problem.path for problem in find_problems(Recipe.model_validate(GOOD | sections))]


def test_a_good_recipe_has_no_problem() -> None:
    assert found() == []


@pytest.mark.parametrize(
    ("model", "path"),
    [
        ({}, "model"),
        ({"python": "m:f", "plugin": "p"}, "model"),
        ({"python": "m.f"}, "model.python"),
        ({"decoder": {"preset": "1m"}, "options": {"a": 1}}, "model.options"),
        ({"huggingface": {}}, "model.huggingface"),
        ({"huggingface": {"path": "p", "config": {}}}, "model.huggingface"),
        ({"decoder": {"layers": 2}}, "model.decoder"),
        ({"decoder": {"layers": 2, "width": 100, "heads": 3}}, "model.decoder.heads"),
        ({"decoder": {"preset": "1m", "heads": 8, "kv_heads": 3}}, "model.decoder.kv_heads"),
    ],
)
def test_a_model_that_cannot_be_built_is_found(model: dict[str, object], path: str) -> None:
    assert found(model=model) == [path]


@pytest.mark.parametrize(
    "model",
    [
        {"python": "m:f", "options": {"a": 1}},
        {"plugin": "p", "options": {"a": 1}},
        {"huggingface": {"config": {"model_type": "gpt2"}}},
        {"decoder": {"layers": 2, "width": 96, "heads": 6, "kv_heads": 3}},
    ],
)
def test_every_kind_of_model_has_a_right_form(model: dict[str, object]) -> None:
    assert found(model=model) == []


@pytest.mark.parametrize(
    ("data", "path"),
    [
        ({}, "data"),
        ({"dataset": "d", "source": "m:f"}, "data"),
        ({"source": "m.f"}, "data.source"),
        ({"dataset": "d", "options": {"a": 1}}, "data.options"),
    ],
)
def test_data_that_cannot_be_opened_is_found(data: dict[str, object], path: str) -> None:
    assert found(data=data) == [path]


@pytest.mark.parametrize(
    ("train", "path"),
    [
        ({}, "train"),
        ({"steps": 1, "epochs": 1.0}, "train"),
        ({"steps": 1, "micro_batch": 5}, "train.micro_batch"),
        ({"tokens": "many"}, "train.tokens"),
        ({"tokens": "9" * 400}, "train.tokens"),
        ({"tokens": "5 steps"}, "train.tokens"),
        ({"tokens": 0}, "train.tokens"),
        ({"steps": 1, "schedule": {"warmup": "soon"}}, "train.schedule.warmup"),
        ({"steps": 1, "schedule": {"decay": -1}}, "train.schedule.decay"),
    ],
)
def test_work_that_cannot_be_done_is_found(train: dict[str, object], path: str) -> None:
    assert found(train={"global_batch": 12} | train) == [path]


@pytest.mark.parametrize("data", [{"source": "m:f"}, {"dataset": "d", "reading": "documents"}])
def test_tokens_are_only_counted_ahead_in_the_packed_reading(data: dict[str, object]) -> None:
    train = {"global_batch": 12, "tokens": "1M", "schedule": {"warmup": "1k tokens"}}
    assert found(train=train, data=data) == ["train.tokens", "train.schedule.warmup"]
    assert found(train=train) == []


def test_ddp_does_not_shard() -> None:
    assert found(parallel={"engine": "ddp", "shard": 2}) == ["parallel.shard"]
    assert found(parallel={"engine": "ddp", "shard": 1}) == []


@pytest.mark.parametrize(
    ("parallel", "processes", "expected"),
    [
        ({}, 4, ("ddp", 4, 1)),
        ({"engine": "ddp"}, 3, ("ddp", 3, 1)),
        ({"engine": "fsdp"}, 4, ("fsdp", 1, 4)),
        ({"shard": 2}, 4, ("fsdp", 2, 2)),
        ({"engine": "fsdp", "replicate": 2}, 6, ("fsdp", 2, 3)),
        ({"engine": "fsdp", "shard": 1}, 3, ("fsdp", 3, 1)),
        ({"replicate": 2, "shard": 2}, 4, ("fsdp", 2, 2)),
    ],
)
def test_the_free_degree_is_filled_in(parallel: dict[str, object], processes: int, expected: tuple) -> None:
    assert choose_degrees(ParallelSection.model_validate(parallel), processes) == expected


@pytest.mark.parametrize(
    ("parallel", "processes"),
    [
        ({"shard": 3}, 4),
        ({"engine": "ddp", "replicate": 3}, 2),
        ({"engine": "fsdp", "replicate": 3}, 4),
        ({"replicate": 2, "shard": 4}, 4),
        ({"engine": "fsdp", "shard": 8}, 4),
    ],
)
def test_degrees_that_do_not_make_the_processes_are_refused_with_the_equation(
    parallel: dict[str, object], processes: int
) -> None:
    with pytest.raises(
        RecipeError, match=rf"parallel\.replicate \d+ × parallel\.shard \d+ .* {processes} processes"
    ):
        choose_degrees(ParallelSection.model_validate(parallel), processes)


@given(
    st.sampled_from(["auto", "ddp", "fsdp"]),
    st.integers(1, 8) | st.just("auto"),
    st.integers(1, 8) | st.just("auto"),
    st.integers(1, 16),
)
def test_degrees_either_multiply_to_the_processes_or_are_refused(engine, shard, replicate, processes) -> None:
    parallel = ParallelSection(engine=engine, shard=shard, replicate=replicate)
    try:
        degrees = choose_degrees(parallel, processes)
    except RecipeError:
        return
    assert degrees.replicate * degrees.shard == processes
    assert degrees.engine == "fsdp" or degrees.shard == 1


def test_a_run_cannot_be_kept_in_memory() -> None:
    assert found(run={"name": "a", "store": "memory://x"}) == ["run.store"]


@pytest.mark.parametrize(("name", "paths"), [("lion", []), ("m:C", []), ("adamW", ["train.optimizer.name"])])
def test_an_optimizer_that_does_not_exist_is_found(name: str, paths: list[str]) -> None:
    assert found(train={"steps": 1, "global_batch": 1, "optimizer": {"name": name}}) == paths
