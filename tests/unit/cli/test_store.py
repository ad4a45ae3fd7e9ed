import json
from pathlib import Path

import pytest

from torchrelay.cli.app import run
from torchrelay.core.errors import StoreError
from torchrelay.store.files import FileStore


def test_a_good_place_is_a_table_of_yes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["store", "check", str(tmp_path / "store")]) == 0
    shown = capsys.readouterr().out
    assert shown.count(" yes ") == 9
    assert " NO " not in shown
    assert "can be used for data and runs" in shown
    assert list(tmp_path.iterdir()) == []


def test_a_bad_place_ends_with_78_and_the_hint_of_what_failed_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise StoreError("x: access denied (403 AccessDenied)", hint="ask for it")

    monkeypatch.setattr(FileStore, "put", refuse)
    assert run(["store", "check", str(tmp_path)]) == 78
    shown = capsys.readouterr()
    assert " NO " in shown.out
    assert "write: x: access denied" in shown.err
    assert "hint: ask for it" in shown.err
    assert run(["store", "check", str(tmp_path), "--json"]) == 78
    report = json.loads(capsys.readouterr().out)
    assert report["works"] is False
    assert [row["works"] for row in report["checks"]] == [True, False]


def test_a_place_to_read_from_is_only_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    FileStore(tmp_path).put("a/b", b"12345")
    assert run(["store", "check", str(tmp_path), "--read-only"]) == 0
    assert "can be read" in capsys.readouterr().out
