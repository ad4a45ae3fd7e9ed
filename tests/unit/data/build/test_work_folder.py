import os
from pathlib import Path

import pytest

from torchrelay.core.errors import DataError
from torchrelay.data.build.journal import FILE
from torchrelay.data.build.staging import TEMPORARY
from torchrelay.data.build.work_folder import (
    begin_anew,
    choose_folder,
    hold_folder,
    remove_folder,
    sweep_stale,
)


def test_the_same_request_has_the_same_folder(tmp_path: Path) -> None:
    variables = {"TORCHRELAY_CACHE": str(tmp_path)}
    folder = choose_folder({"a": 1, "b": [2]}, None, variables)
    assert folder.parent == tmp_path / "builds"
    assert choose_folder({"b": [2], "a": 1}, None, variables) == folder
    assert choose_folder({"b": [3], "a": 1}, None, variables) != folder
    assert choose_folder({"a": 1, "b": [2]}, tmp_path / "mine", {}) == tmp_path / "mine" / folder.name
    home = choose_folder({}, None, {})
    assert home.is_relative_to(Path.home() / ".cache" / "torchrelay" / "builds")


def test_only_one_has_a_folder_at_a_time(tmp_path: Path) -> None:
    folder = tmp_path / "x"
    with hold_folder(folder):
        with pytest.raises(DataError, match="another process is making the same build") as caught:
            with hold_folder(folder):
                pass
        assert caught.value.exit_code == 1  # the same command can succeed later
        remove_folder(folder)
        with hold_folder(folder):  # what was removed is not held by anybody
            pass
    with hold_folder(folder):
        pass


def test_half_staged_units_are_removed(tmp_path: Path) -> None:
    left = tmp_path / f"00000001-ab{TEMPORARY}cd"
    left.mkdir()
    (left / "train").touch()
    (tmp_path / "00000000-ab").mkdir()
    with hold_folder(tmp_path):
        assert sorted(path.name for path in tmp_path.iterdir()) == ["00000000-ab", "lock"]


def test_beginning_anew_keeps_the_lock(tmp_path: Path) -> None:
    with hold_folder(tmp_path):
        (tmp_path / FILE).touch()
        (tmp_path / "00000000-ab").mkdir()
        begin_anew(tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == ["lock"]


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="cannot use .*file/x as the work folder") as caught:
        with hold_folder(tmp_path / "file" / "x"):
            pass
    assert "--work" in caught.value.hint


@pytest.mark.parametrize("kind", ["mkdir", "open"])
def test_a_folder_that_vanishes_again_and_again_ends_in_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    def lose(*_: object, **__: object) -> None:
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(*((Path, "mkdir") if kind == "mkdir" else (os, "open")), lose)
    with pytest.raises(DataError, match="cannot use .*x as the work folder: No such file") as caught:
        with hold_folder(tmp_path / "x"):
            pass
    assert caught.value.exit_code == 78 and "TORCHRELAY_CACHE" in caught.value.hint


def test_folders_that_nobody_touched_for_a_week_are_removed(tmp_path: Path) -> None:
    for name, age_s in (("old", 8 * 86400), ("held", 8 * 86400), ("new", 6 * 86400), ("other", 0)):
        (tmp_path / name).mkdir()
        if name != "other":
            (tmp_path / name / FILE).touch()
            os.utime(tmp_path / name / FILE, (10**9 - age_s, 10**9 - age_s))
    with hold_folder(tmp_path / "held"):
        sweep_stale(tmp_path, now_s=10**9)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["held", "new", "other"]
