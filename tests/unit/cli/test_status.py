import json
from pathlib import Path

from tests.unit.cli.conftest import Command
from tests.unit.observe.support import ERROR
from torchrelay.observe.journal import open_journal
from torchrelay.store.files import FileStore


def rows(out: str) -> dict[str, str]:
    return {line[:14].strip(): line[14:] for line in out.splitlines()}


def test_a_finished_run_in_one_look(command: Command, trained: Path) -> None:
    code, out, _ = command("status", "t")
    assert code == 0
    found = rows(out)
    assert (found["run"], found["state"], found["step"]) == ("t", "finished", "6 of 6")
    assert found["checkpoint"] == "step 6"
    assert found["model"] == f"file://{trained}/final-models/t"
    assert " → " in found["validation"]
    assert found["last word"].endswith(" ago")
    assert "left" not in found


def test_status_for_programs_is_json(command: Command) -> None:
    code, out, _ = command("status", "t", "--json")
    assert code == 0
    found = json.loads(out)
    assert (found["state"], found["step"], found["steps"], found["samples"], found["world"]) == (
        "finished", 6, 6, 24, 1
    )  # fmt: skip


def test_a_failed_run_says_why(command: Command, store: Path) -> None:
    journal = open_journal(FileStore(store), "t", 1, part=".launcher")
    journal.write(ERROR)
    journal.close()
    _, out, _ = command("status", "t")
    assert (rows(out)["state"], rows(out)["error"]) == ("failed", "rank 1 was killed")


def test_a_missing_run_is_named(command: Command) -> None:
    code, _, errors = command("status", "u")
    assert code == 78
    assert "there is no run 'u'" in errors
