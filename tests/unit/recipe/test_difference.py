import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchrelay.recipe.difference import LENGTH_PATH, Change, differences, refuse_message
from torchrelay.recipe.schema import Recipe


def test_equal_recipes_do_not_differ(load) -> None:
    assert differences(load(), load("run.seed=1", "checkpoint.every=500")) == []


@pytest.mark.parametrize(
    ("setting", "change"),
    [
        ("train.steps=20", Change("train.steps", 10, 20, True)),
        ("checkpoint.every=10min", Change("checkpoint.every", "500 steps", "600s", True)),
        ("parallel.engine=fsdp", Change("parallel.engine", "auto", "fsdp", True)),
        ("run.seed=2", Change("run.seed", 1, 2, False)),
        (
            "train.optimizer.betas=[0.9, 0.99]",
            Change("train.optimizer.betas", [0.9, 0.95], [0.9, 0.99], False),
        ),
        ("train.clip_norm=null", Change("train.clip_norm", 1.0, None, False)),
        ("model.decoder.width=64", Change("model.decoder.width", None, 64, False)),
        ("train.optimizer.options={a: 1}", Change("train.optimizer.options.a", None, 1, False)),
        ("train.optimizer.options={a: {b: 1}}", Change("train.optimizer.options.a", None, {"b": 1}, False)),
    ],
)
def test_a_changed_value_is_told_with_old_and_new_and_whether_it_may(
    load, setting: str, change: Change
) -> None:
    assert differences(load(), load(setting)) == [change]


def test_inside_a_free_mapping_the_key_that_differs_is_named(load) -> None:
    old = load("train.optimizer.options={a: {b: 1, c: 2}, d: 3}")
    new = load("train.optimizer.options={a: {b: 1, c: 5}}")
    assert [(c.path, c.old, c.new) for c in differences(old, new)] == [
        ("train.optimizer.options.a.c", 2, 5),
        ("train.optimizer.options.d", 3, None),
    ]


def test_steps_epochs_and_tokens_are_one_choice(load) -> None:
    new = load("train.steps=null", "train.epochs=2")
    assert differences(load(), new) == [Change(LENGTH_PATH, "steps: 10", "epochs: 2.0", True)]


def test_another_kind_of_model_is_one_difference_on_each_side(load) -> None:
    changes = differences(load(), load("model={python: 'm:f'}"))
    assert [(c.path, c.new) for c in changes] == [("model.decoder", None), ("model.python", "m:f")]
    assert changes[0].old["preset"] == "1m"  # type: ignore[index]
    assert not any(c.allowed for c in changes)


def test_the_message_lists_what_may_not_change_apart_from_what_may(load) -> None:
    new = load(
        "run.seed=2", "train.steps=20", "model.decoder.width=64", "train.optimizer.name=x:" + "x" * 100
    )
    assert refuse_message(differences(load(), new)).splitlines() == [
        "the recipe is not the one this run was started with",
        "  cannot change within a run:",
        "    run.seed: 1 -> 2",
        "    model.decoder.width: not set -> 64",
        f"    train.optimizer.name: adamw -> x:{'x' * 55}...",
        "  may change:",
        "    train.steps: 10 -> 20",
    ]


@given(st.integers(1, 3), st.integers(1, 3), st.booleans(), st.booleans())
def test_two_recipes_differ_exactly_when_something_is_listed(seed, steps, shuffle, log) -> None:
    def build(seed: int, steps: int, shuffle: bool, log: bool) -> Recipe:
        return Recipe.model_validate(
            {
                "run": {"name": "a", "seed": seed},
                "model": {"decoder": {}},
                "data": {"dataset": "d", "shuffle": shuffle},
                "train": {"steps": steps, "global_batch": 8},
                "observe": {"sample_log": log},
            }
        )

    one, other = build(1, 1, True, False), build(seed, steps, shuffle, log)
    changes = differences(one, other)
    assert (changes == []) == (one == other)
    assert all(change.allowed for change in changes) == (seed == 1 and shuffle)
    assert differences(other, one) == [Change(c.path, c.new, c.old, c.allowed) for c in changes]
