import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.checkpoint.support import put
from tests.unit.train.support import recipe
from torchrelay import __version__
from torchrelay.checkpoint.shelf import Shelf
from torchrelay.core.errors import DataError, RecipeError
from torchrelay.data.order.history import Source
from torchrelay.data.recipe_plan import plan_once
from torchrelay.observe.rundir import list_attempts, list_runs, read_run
from torchrelay.recipe.load import recipe_hash
from torchrelay.recipe.schema import Recipe
from torchrelay.store.files import FileStore
from torchrelay.train import entry as entry_module
from torchrelay.train.entry import Entry, EntryFacts, code_version, enter_run, find_run


def facts(version: str, **changes: Any) -> EntryFacts:
    plan = plan_once([Source("NAME", version * 64, 30)], seed=7)
    return EntryFacts(plan=replace(plan, **changes), micro_batch=2, world=4)


FACTS = facts("d")


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path)


def enter(store: FileStore, wanted: Recipe, *, fresh: bool = False, facts: EntryFacts = FACTS) -> Entry:
    return enter_run(store, wanted, find_run(store, wanted, fresh=fresh), facts=facts, clock=lambda: 9.0)


def test_the_first_start_begins_a_run_and_keeps_what_it_was_told(store: FileStore, tmp_path: Path) -> None:
    wanted = recipe(tmp_path)
    entry = enter(store, wanted)
    assert (entry.run.run, entry.attempt, entry.changes) == ("t", 1, [])
    kept = read_run(store, "t")
    assert Recipe.model_validate(kept.recipe) == wanted
    assert (kept.recipe_hash, kept.dataset_version, kept.micro_batch) == (recipe_hash(wanted), "d" * 64, 2)
    assert kept.environment["torch"]
    assert list_attempts(store, "t")[0].world == 4


def test_the_next_start_is_the_next_attempt_of_the_same_run(store: FileStore, tmp_path: Path) -> None:
    enter(store, recipe(tmp_path))
    entry = enter(store, recipe(tmp_path))
    assert (entry.run.run, entry.attempt) == ("t", 2)
    assert list_runs(store) == ["t"]


def test_a_fresh_start_is_a_run_of_its_own_which_the_next_start_resumes(
    store: FileStore, tmp_path: Path
) -> None:
    enter(store, recipe(tmp_path))
    assert enter(store, recipe(tmp_path), fresh=True).run.run == "t-2"
    entry = enter(store, recipe(tmp_path))
    assert (entry.run.run, entry.attempt) == ("t-2", 2)


def test_what_may_change_is_told_and_what_may_not_is_refused_with_both_listed_apart(
    store: FileStore, tmp_path: Path
) -> None:
    enter(store, recipe(tmp_path))
    entry = enter(store, recipe(tmp_path, train={"steps": 9}, checkpoint={"every": 3}))
    assert entry.changes == ["train.steps: 6 → 9", "checkpoint.every: 2 steps → 3 steps"]
    with pytest.raises(RecipeError) as caught:
        enter(store, recipe(tmp_path, train={"steps": 9, "clip_norm": 0.5}, run={"seed": 8}))
    lines = caught.value.message.splitlines()
    forbidden, allowed = lines.index("  cannot change within a run:"), lines.index("  may change:")
    assert lines[forbidden + 1 : allowed] == ["    run.seed: 7 -> 8", "    train.clip_norm: 1.0 -> 0.5"]
    assert lines[allowed + 1 :] == ["    train.steps: 6 -> 9"]
    assert "--fresh" in caught.value.hint
    assert len(list_attempts(store, "t")) == 2


def test_another_version_of_the_data_is_refused_with_both_named(store: FileStore, tmp_path: Path) -> None:
    enter(store, recipe(tmp_path))
    with pytest.raises(
        RecipeError, match="trains on version dddddddddddd .* now gives eeeeeeeeeeee"
    ) as caught:
        enter(store, recipe(tmp_path), facts=facts("e"))
    assert "NAME@dddddddddddd" in caught.value.hint
    assert len(list_attempts(store, "t")) == 1


def test_another_version_may_be_asked_for(store: FileStore, tmp_path: Path) -> None:
    enter(store, recipe(tmp_path))
    assert enter(store, recipe(tmp_path), facts=facts("e", migrate_from="dddddd")).attempt == 2
    assert enter(store, recipe(tmp_path), facts=facts("e", may_add=True)).attempt == 3


def test_what_a_run_has_read_since_it_began_is_what_counts(store: FileStore, tmp_path: Path) -> None:
    """It began with d, went on with v, and stands in its second checkpoint."""
    enter(store, recipe(tmp_path))
    shelf = Shelf(store, "t")
    for step in (1, 2):
        put(shelf, step)  # at version v
    with pytest.raises(DataError, match="has read version v of its data up to slot 16; now d is version ee"):
        enter(store, recipe(tmp_path), facts=facts("e", sources=(Source("d", "e" * 64, 30),)))
    going_on = facts("e", sources=(Source("d", "v", 100),))
    assert enter(store, recipe(tmp_path), facts=going_on).attempt == 2


def test_a_run_of_another_torchrelay_whose_recipe_does_not_fit_is_refused(
    store: FileStore, tmp_path: Path
) -> None:
    enter(store, recipe(tmp_path))
    path = store.local_path("runs/t/run.json")
    path.write_text(path.read_text().replace('"global_batch"', '"batch_of_old"'))
    with pytest.raises(RecipeError, match="another version of torchrelay") as caught:
        enter(store, recipe(tmp_path))
    assert "--fresh" in caught.value.hint


def test_the_code_s_version_has_the_commit_only_where_it_runs_from_its_own_checkout(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def missing(*args: object, **kwargs: object) -> None:
        raise FileNotFoundError("git")

    def answer(command: list[str], **kwargs: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 0, stdout="abc1234-dirty\n")

    monkeypatch.setattr(entry_module, "__file__", str(tmp_path / "src/torchrelay/train/entry.py"))
    commit = f"{__version__}+abc1234-dirty"
    for is_checkout, run, expected in (
        (False, answer, __version__),
        (True, missing, __version__),
        (True, answer, commit),
    ):
        if is_checkout:
            (tmp_path / ".git").mkdir(exist_ok=True)
        monkeypatch.setattr(entry_module.subprocess, "run", run)
        code_version.cache_clear()
        assert code_version() == expected
    monkeypatch.setattr(entry_module.subprocess, "run", missing)
    assert code_version() == commit  # asked once: what runs does not change
    code_version.cache_clear()
