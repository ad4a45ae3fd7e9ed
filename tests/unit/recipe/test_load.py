from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchrelay.core.errors import ExitCode, RecipeError
from torchrelay.core.units import Every
from torchrelay.recipe.load import load_recipe, recipe_hash
from torchrelay.recipe.schema import Recipe


def problems(caught: pytest.ExceptionInfo[RecipeError]) -> list[str]:
    """The listed lines, without the folder of the file."""
    return [line.strip().split("/")[-1] for line in caught.value.message.splitlines()[1:]]


def test_the_smallest_recipe_gets_the_defaults(load) -> None:
    recipe = load()
    assert recipe.run.seed == 1
    assert recipe.checkpoint.every == Every(500, "steps")
    assert recipe.train.optimizer.betas == (0.9, 0.95)


def test_values_are_read_as_people_write_them(load) -> None:
    recipe = load(
        "checkpoint.every=10min",
        "parallel.timeout=2min",
        "train.optimizer.lr=1e-3",
        "train.validate_every=20 steps",
        "train.schedule.warmup=2M tokens",
        "train.optimizer.betas=[0.8, 0.9]",
    )
    assert recipe.checkpoint.every == Every(600, "seconds")
    assert recipe.parallel.timeout == 120
    assert recipe.train.optimizer.lr == 0.001
    assert recipe.train.validate_every == Every(20, "steps")
    assert recipe.train.optimizer.betas == (0.8, 0.9)


def test_a_setting_wins_over_the_file_and_makes_its_section(load) -> None:
    recipe = load(
        "train.steps=50", "run.store=s3://bucket/prefix", "parallel.engine=fsdp", "parallel.shard=2"
    )
    assert recipe.train.steps == 50
    assert recipe.run.store == "s3://bucket/prefix"
    assert (recipe.parallel.engine, recipe.parallel.shard) == ("fsdp", 2)


def test_a_setting_can_take_a_value_away(load) -> None:
    recipe = load("train.steps=null", "train.epochs=1.5")
    assert (recipe.train.steps, recipe.train.epochs) == (None, 1.5)


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("train.stepz=5", "--set: train.stepz: unknown key; did you mean 'steps'?"),
        ("train.optimzer.lr=1", "--set: train.optimzer: unknown key; did you mean 'optimizer'?"),
        ("model.decoder.widht=3", "--set: model.decoder.widht: unknown key; did you mean 'width'?"),
        (
            "zzz.b=1",
            "--set: zzz: unknown key (valid keys: run, model, data, train, parallel, checkpoint, observe)",
        ),
        ("run.name=7", "--set: run.name: input should be a valid string, got 7"),
        ("train.steps=1.5", "--set: train.steps: input should be a valid integer, got 1.5"),
        ("train.steps=true", "--set: train.steps: input should be a valid integer, got True"),
        ("train.steps=0", "--set: train.steps: input should be greater than or equal to 1, got 0"),
        (
            "train.micro_batch=x",
            "--set: train.micro_batch: input should be a valid integer, got 'x' "
            "or input should be 'auto', got 'x'",
        ),
        (
            "checkpoint.every=null",
            '--set: checkpoint.every: an interval cannot be None; write it like "500 steps" or "10min"',
        ),
        ("parallel.timeout=[1]", '--set: parallel.timeout: a duration cannot be [1]; write it like "10min"'),
        ("train.optimizer.lr=.inf", "--set: train.optimizer.lr: input should be a finite number, got inf"),
        ("train.optimizer.lr=.nan", "--set: train.optimizer.lr: input should be a finite number, got nan"),
        ("parallel=null", "--set: parallel: input should be a section of keys, got None"),
        (
            "train.micro_batch=3",
            "--set: train.micro_batch: 3 does not divide train.global_batch 8 (use one of 1, 2, 4, 8)",
        ),
        ("data.curriculum=null", "--set: data.curriculum: input should be a list, got None"),
        ("data.skip=[1..2, 5]", "--set: data.skip[1]: input should be a valid string, got 5"),
        (
            "train.optimizer.betas=[0.1, 0.2, 0.3]",
            "--set: train.optimizer.betas: list should have at most 2 items, not 3, got [0.1, 0.2, 0.3]",
        ),
        ("data.decode_options=3", "--set: data.decode_options: input should be a section of keys, got 3"),
        ("train.precision=fp8", "--set: train.precision: input should be 'fp32' or 'bf16', got 'fp8'"),
    ],
)
def test_a_wrong_value_is_named_with_its_place_and_what_to_write(load, setting: str, expected: str) -> None:
    with pytest.raises(RecipeError) as caught:
        load(setting)
    assert problems(caught) == [expected]
    assert caught.value.exit_code == ExitCode.BAD_INPUT
    assert "recipe reference" in caught.value.hint


def test_every_problem_is_reported_at_once_with_its_line(write) -> None:
    text = """\
run:
  nam: a
model: {decoder: {preset: 1m}, options: {a: 1}}
data: {dataset: d, source: m:f, redaing: packed}
train:
  steps: ten
  global_batch: 8
checkpoint: {every: sometimes}
"""
    with pytest.raises(RecipeError) as caught:
        load_recipe(write(text))
    assert caught.value.message.splitlines()[0].endswith("recipe.yaml has 5 problems:")
    assert problems(caught) == [
        "recipe.yaml: run.name: is missing",
        "recipe.yaml:2: run.nam: unknown key; did you mean 'name'?",
        "recipe.yaml:4: data.redaing: unknown key; did you mean 'reading'?",
        "recipe.yaml:6: train.steps: input should be a valid integer, got 'ten'",
        "recipe.yaml:8: checkpoint.every: 'sometimes' is not an interval; "
        'write it like "500 steps" or "10min"',
    ]


def test_a_wrong_key_in_a_list_is_told_beside_what_follows_it(write) -> None:
    text = """\
run: {name: a}
model: {decoder: {preset: 1m}}
data:
  mixture:
    - {dataset: a, weigth: 1}
    - {dataset: 3, weight: x}
train: {steps: 10, global_batch: 8}
"""
    with pytest.raises(RecipeError) as caught:
        load_recipe(write(text))
    assert problems(caught) == [
        "recipe.yaml:4: data.mixture[0].weight: is missing",
        "recipe.yaml:4: data.mixture[0].weigth: unknown key; did you mean 'weight'?",
        "recipe.yaml:4: data.mixture[1].dataset: input should be a valid string, got 3",
        "recipe.yaml:4: data.mixture[1].weight: input should be a valid number, got 'x'",
    ]


def test_impossible_combinations_are_reported_beside_wrong_values(load) -> None:
    with pytest.raises(RecipeError) as caught:
        load("train.micro_batch=3", "train.stepz=1", "parallel.engine=ddp", "parallel.shard=2", "run.seed=x")
    assert [line.split(": ")[1] for line in problems(caught)] == [
        "run.seed",
        "train.stepz",
        "train.micro_batch",
        "parallel.shard",
    ]


def test_a_combination_that_only_a_wrong_value_made_impossible_is_not_reported(load) -> None:
    with pytest.raises(RecipeError) as caught:
        load("train.steps=ten")  # without steps the recipe has no length
    assert len(problems(caught)) == 1


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"a: \x00", "not valid YAML: unacceptable character"),
        (b"a: [1", r"recipe.yaml:1: not valid YAML: expected ',' or ']'"),
        (b"a: &a {b: *a}\n", "nested too deeply"),
        (b"run: {name: 2026-13-45}", "month must be in 1..12"),
        (b"? [1]\n: 2\n", "recipe.yaml:1: not valid YAML: found unhashable key"),
        (
            b"run:\n  name: a\n  name: b\n",
            r"recipe.yaml:3: not valid YAML: run.name is given twice \(first in line 2\)",
        ),
        (b"!!python/object/apply:os.getpid []", "could not determine a constructor"),
        (b"\xff", "can't decode"),
        (b"[]", "a recipe is a mapping of sections"),
        (b"", "a recipe is a mapping of sections"),
    ],
)
def test_a_file_that_is_no_recipe_is_refused(tmp_path: Path, text: bytes, reason: str) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_bytes(text)
    with pytest.raises(RecipeError, match=reason):
        load_recipe(str(path))


def test_a_missing_file_points_to_init(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="there is no recipe at") as caught:
        load_recipe(str(tmp_path / "none.yaml"))
    assert "torchrelay init" in caught.value.hint
    with pytest.raises(RecipeError, match="cannot read"):
        load_recipe(str(tmp_path))


@pytest.mark.parametrize("setting", ["train.steps", "=5", "x=[", "run.name=2026-13-45"])
def test_a_malformed_setting_is_refused(load, setting: str) -> None:
    with pytest.raises(RecipeError, match=r"--set '"):
        load(setting)


@given(st.text(max_size=60))
def test_no_text_of_any_kind_escapes_as_another_error(tmp_path_factory, text: str) -> None:
    path = tmp_path_factory.mktemp("any") / "recipe.yaml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(RecipeError):
        load_recipe(str(path))


def test_a_recipe_survives_being_stored(load) -> None:
    recipe = load("checkpoint.every=90s", "train.epochs=2", "train.steps=null", "parallel.timeout=5s")
    stored = recipe.model_dump(mode="json")
    assert Recipe.model_validate(stored) == recipe
    assert recipe_hash(Recipe.model_validate(stored)) == recipe_hash(recipe)


def test_the_hash_follows_meaning_and_not_spelling(load, write) -> None:
    spelled_out = """\
# the same, written differently
train: {global_batch: 8, steps: 10, precision: "fp32"}
data: {dataset: d}
model:
  decoder: {preset: 1m}
run: {seed: 1, name: a}
checkpoint: {every: 500}
"""
    assert recipe_hash(load_recipe(write(spelled_out))) == recipe_hash(load())
    assert recipe_hash(load("run.seed=2")) != recipe_hash(load())
