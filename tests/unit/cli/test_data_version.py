import json
from collections.abc import Callable
from pathlib import Path

import pytest

from torchrelay.cli import data_version
from torchrelay.cli.app import run
from torchrelay.data.dataset import list_refs, open_dataset
from torchrelay.store.open import open_store

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    """Run `torchrelay data …` where `texts` has two versions; gives exit code, output and errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TORCHRELAY_CACHE", str(tmp_path / "cache"))

    def run_command(*arguments: str) -> tuple[int, str, str]:
        code = run(["data", *arguments])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    for count in (20, 30):
        for number in range(count):
            Path(f"{number:02d}.txt").write_text(f"text {number} " * 40)
        assert (
            run_command("build", "texts", "--text", "*.txt", "--shard-size", "4KiB", "--validation", "20%")[0]
            == 0
        )
    return run_command


def test_diff_tells_what_came_and_went(call: Call) -> None:
    code, out, _ = call("diff", "texts@1", "texts@2")
    assert code == 0
    lines = out.splitlines()
    assert all(len(line) <= 100 for line in lines)
    assert lines[1].split() == [
        *("split", "samples", "now", "added", "removed"),
        *("shards", "kept", "new", "gone", "new", "bytes"),
    ]
    rows = {line.split()[0]: line.split()[1:] for line in lines[2:4]}
    assert sum(int(row[0]) for row in rows.values()) == 20
    assert sum(int(row[1]) for row in rows.values()) == 30
    assert sum(int(row[2]) for row in rows.values()) == 10
    tree = json.loads(call("diff", "texts@1", "texts@2", "--json")[1])
    assert tree["leaked_samples"] == 0
    assert "the same version" in call("diff", "texts@2", "texts")[1]


def test_diff_warns_of_validation_documents_that_are_trained_on(call: Call) -> None:
    call("build", "texts", "--text", "*.txt", "--validation", "5%")
    assert "warning: " in call("diff", "texts@2", "texts@3")[1]
    assert "keeps out of training" in call("diff", "texts@2", "texts@3")[1]


def test_copy_says_where_the_version_went(call: Call) -> None:
    code, out, _ = call("copy", "texts@1", "--to", "other-store", "--name", "copied")
    assert code == 0
    assert f"file://{Path.cwd()}/other-store/datasets/copied" in out
    first = open_dataset(open_store("relay-store"), "texts@1").manifest.version
    assert open_dataset(open_store("other-store"), "copied").manifest.version == first
    assert "copied     0 B" in call("copy", "texts@1", "--to", "other-store", "--name", "copied")[1]


def test_a_tag_is_made_and_shown(call: Call) -> None:
    assert call("tag", "texts@1", "v1")[0] == 0
    assert "v1 (" in call("show", "texts")[1]
    assert "as before" in call("tag", "texts@1", "v1")[1]
    code, _, errors = call("tag", "texts@2", "v1")
    assert code == 78 and "a tag is never moved" in errors


def test_gc_deletes_only_when_told_to(call: Call) -> None:
    store = open_store("relay-store")
    code, out, _ = call("gc", "texts", "--keep-last", "1", "--grace", "0s")
    assert code == 0 and "nothing is deleted yet" in out
    newest = open_dataset(store, "texts").manifest.short_version
    assert f"kept       {newest} by ref 2" in out
    assert list_refs(store, "texts") == [1, 2]
    tree = json.loads(call("gc", "texts", "--keep-last", "1", "--grace", "0s", "--json")[1])
    assert tree["refs"] == [1] and tree["bytes"] > 0
    count = len(tree["refs"]) + len(tree["files"])
    code, out, _ = call("gc", "texts", "--keep-last", "1", "--grace", "0s", "--delete")
    assert code == 0 and out.splitlines()[-1] == f"deleted {count} files"
    code, out, _ = call("gc", "texts", "--keep-last", "1", "--grace", "0s", "--delete")
    assert code == 0 and out.splitlines()[-1] == "nothing to delete"
    assert list_refs(store, "texts") == [2]
    assert call("verify", "texts")[0] == 0


def test_gc_tells_which_ref_tag_or_run_keeps_what(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    first = open_dataset(open_store("relay-store"), "texts@1").manifest
    call("tag", "texts@1", "paper")
    monkeypatch.setattr(data_version, "_trained_versions", lambda store: {first.version: ["r1", "r2"]})
    _, out, _ = call("gc", "texts", "--keep-last", "1", "--grace", "0s")
    assert f"{first.short_version} by ref 1, tag paper, run r1, run r2" in " ".join(out.split())
