import json
from pathlib import Path

from tests.unit.cli.conftest import Command
from torchrelay.checkpoint.digest import digest_checkpoint
from torchrelay.checkpoint.shelf import Shelf
from torchrelay.store.files import FileStore


def part(store: Path, step: int) -> Path:
    (path,) = store.glob(f"runs/t/checkpoints/step-{step:09d}/*/rank-00000.bin")
    return path


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def test_list_shows_every_checkpoint_oldest_first(command: Command) -> None:
    code, out, _ = command("checkpoint", "list", "t")
    assert code == 0
    rows = [line.split() for line in out.splitlines()]
    assert rows[0] == ["step", "saved", "bytes", "processes", "attempt", "state"]
    assert [(row[0], row[-1]) for row in rows[1:]] == [("2", "good"), ("4", "good"), ("6", "good")]


def test_list_for_programs_has_the_promised_fields(command: Command) -> None:
    code, out, _ = command("checkpoint", "list", "t", "--json")
    assert code == 0
    found = json.loads(out)
    assert [entry["step"] for entry in found] == [2, 4, 6]
    assert {"step", "samples", "tokens", "bytes", "world", "files", "state"} <= set(found[0])
    assert (found[2]["samples"], found[2]["world"], found[2]["files"]) == (24, 1, 2)


def test_show_is_of_the_newest_good_one_with_hashes_over_the_whole_tensors(
    command: Command, store: Path
) -> None:
    code, out, _ = command("checkpoint", "show", "t", "--json")
    assert code == 0
    found = json.loads(out)
    shelf = Shelf(FileStore(store), "t")
    commit = shelf.usable()[0]
    weights, optimizer = digest_checkpoint(shelf, commit, shelf.read_manifest(commit))
    assert found["step"] == 6
    assert (found["weights_sha256"], found["optimizer_sha256"]) == (weights, optimizer)
    assert {"samples", "tokens", "bytes", "world", "files", "engine", "dataset_version"} <= set(found)


def test_show_takes_a_step_and_names_those_that_are_there(command: Command) -> None:
    code, out, _ = command("checkpoint", "show", "t", "--step", "4")
    assert code == 0
    assert "step              4" in out
    code, _, errors = command("checkpoint", "show", "t", "--step", "5")
    assert code == 78
    assert "no checkpoint of step 5" in errors
    assert "hint: there are: 2, 4, 6" in errors


def test_verify_says_good_or_names_file_and_reason(command: Command, store: Path) -> None:
    code, out, _ = command("checkpoint", "verify", "t")
    assert (code, out.split()) == (0, ["step", "2", "good", "step", "4", "good", "step", "6", "good"])
    flip(part(store, 4))
    code, out, _ = command("checkpoint", "verify", "t")
    assert code == 78
    assert "step 4  DAMAGED" in out
    assert "rank-00000.bin: checksum" in out
    code, out, _ = command("checkpoint", "verify", "t", "--step", "6", "--json")
    assert (code, json.loads(out)) == (0, {"COMMITTED-000000000006-1.json": []})


def test_a_damaged_commit_record_is_a_finding_and_not_a_crash(command: Command, store: Path) -> None:
    record = store / "runs/t/checkpoints/COMMITTED-000000000006-1.json"
    record.write_bytes(record.read_bytes()[:-5])
    code, out, _ = command("checkpoint", "verify", "t")
    assert code == 78
    assert "step 6  DAMAGED" in out
    assert "COMMITTED-000000000006-1.json cannot be read" in out
    code, out, _ = command("checkpoint", "list", "t")
    assert code == 0
    assert "quarantined" in out.splitlines()[-1] or "damaged" in out
    code, _, errors = command("checkpoint", "show", "t", "--step", "6")
    assert code == 78
    assert "COMMITTED-000000000006-1.json is damaged" in errors


def test_show_of_a_damaged_checkpoint_says_what_is_damaged(command: Command, store: Path) -> None:
    flip(part(store, 6))
    code, _, errors = command("checkpoint", "show", "t")
    assert code == 78
    assert "rank-00000.bin: " in errors


def test_a_missing_run_is_named_with_the_nearest(command: Command) -> None:
    for words in (("list", "tt"), ("show", "tt"), ("verify", "tt")):
        code, _, errors = command("checkpoint", *words)
        assert code == 78
        assert "there is no run 'tt'" in errors
