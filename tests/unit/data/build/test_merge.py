"""A build that is killed at any moment goes on, and gives what one that was never killed gives."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from torchrelay.core.errors import DataError
from torchrelay.data.build.dataset_build import BuildRequest, build_dataset
from torchrelay.data.build.input import JsonLines, TextFiles
from torchrelay.data.build.staging import TEMPORARY
from torchrelay.data.build.work_folder import hold_folder
from torchrelay.store.base import TEMPORARY_MARK
from torchrelay.store.files import FileStore

# The same request as `request` makes below, in a process that can be killed.
PROGRAM = """
import sys
from pathlib import Path
from torchrelay.data.build.dataset_build import BuildRequest, build_dataset
from torchrelay.data.build.input import TextFiles
from torchrelay.store.files import FileStore
folder, processes = Path(sys.argv[1]), int(sys.argv[2])
request = BuildRequest(
    documents=TextFiles([f"{folder}/in/*"]), validation=0.2, test=0.1, shard_bytes=6000, unit_bytes=2000,
    processes=processes, work=folder / "work", tokenizer="chars",
)
print("begins", flush=True)
print(build_dataset(FileStore(folder / "store"), "d", request, progress=lambda *_: None).manifest.version)
"""


def request(folder: Path, **options: object) -> BuildRequest:
    settings: dict[str, object] = {
        "validation": 0.2,
        "test": 0.1,
        "shard_bytes": 6000,
        "unit_bytes": 2000,
        "tokenizer": "chars",
        "work": folder / "work",
        **options,
    }
    return BuildRequest(documents=TextFiles([f"{folder}/in/*"]), **settings)  # type: ignore[arg-type]


def write_texts(folder: Path, count: int = 150) -> None:
    (folder / "in").mkdir()
    for number in range(count):
        text = f"é text {number} " * (10 + number * 7 % 60)
        (folder / "in" / f"{number:04d}.txt").write_text(text)


def build(folder: Path, store: Path, **options: object) -> str:
    made = build_dataset(FileStore(store), "d", request(folder, **options), progress=lambda *_: None)
    return made.manifest.version


def start(folder: Path, processes: int) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", PROGRAM, str(folder), str(processes)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "begins\n"
    return process


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_gone(pid: int, within_s: float = 10) -> bool:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.01)
    return False


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_texts(tmp_path)
    return tmp_path


def test_the_number_of_processes_and_the_size_of_units_decide_nothing(folder: Path) -> None:
    expected = build(folder, folder / "one")
    assert build(folder, folder / "one", unit_bytes=10**9) == expected
    assert build(folder, folder / "three", processes=3) == expected
    assert files(folder / "one") == files(folder / "three")
    assert files(folder / "work") == []


@pytest.mark.parametrize("processes", [1, 2])
def test_killed_again_and_again_it_gives_the_same_version_and_leaves_nothing(
    folder: Path, processes: int
) -> None:
    expected = build(folder, folder / "expected")
    chance = random.Random(processes)
    for _ in range(5):
        process = start(folder, processes)
        time.sleep(chance.uniform(0.0, 0.7))
        workers = children(process.pid) if process.poll() is None else []
        process.kill()
        process.wait()
        assert all(is_gone(worker) for worker in workers)
    process = start(folder, processes)
    output, _ = process.communicate(timeout=60)
    assert (process.returncode, output.strip()) == (0, expected)
    assert files(folder / "store") == files(folder / "expected")
    assert not [name for name in files(folder / "store") if TEMPORARY_MARK in name]
    assert files(folder / "work") == []


class StopAfter(Exception):
    """Stands for a kill at a known moment."""


@pytest.mark.parametrize("moment", [0, 1, 7, 19, 30, 41])
def test_stopped_at_any_step_it_goes_on_without_doing_that_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch, moment: int
) -> None:
    """Stops in the middle of appending a line of the journal."""
    from torchrelay.data.build.journal import Journal

    append = Journal._append
    done: list[str] = []

    def stop(self: Journal, tree: dict[str, object]) -> None:
        done.append(next(iter(tree)))
        if len(done) == moment + 1:
            self._file.write(b"0123abcd {half")
            self._file.flush()
            raise StopAfter
        append(self, tree)

    monkeypatch.setattr(Journal, "_append", stop)
    with pytest.raises(StopAfter):
        build(folder, folder / "store")
    before, written = done[:-1], len(files(folder / "store"))
    done.clear()
    moment = 10**9
    version = build(folder, folder / "store")
    steps = len(before) + len(done)
    monkeypatch.undo()
    assert version == build(folder, folder / "expected")
    assert files(folder / "store") == files(folder / "expected")
    if "shard" in before:  # else so little was done that nothing was kept
        counted = 0
        monkeypatch.setattr(Journal, "_append", lambda self, tree: count(self, tree))

        def count(self: Journal, tree: dict[str, object]) -> None:
            nonlocal counted
            counted += 1
            append(self, tree)

        build(folder, folder / "again")
        assert steps == counted
        assert written >= before.count("shard")


def test_shards_that_vanished_from_the_store_are_made_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = build(folder, folder / "expected")
    stop_after_shards(monkeypatch, 4)
    with pytest.raises(StopAfter):
        build(folder, folder / "store")
    monkeypatch.undo()
    (victim,) = [path for path in (folder / "store").rglob("*.tok")][:1]
    victim.unlink()
    assert build(folder, folder / "store") == expected
    assert files(folder / "store") == files(folder / "expected")


def test_a_staged_unit_that_was_damaged_is_made_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = build(folder, folder / "expected")
    stop_after_shards(monkeypatch, 4)
    with pytest.raises(StopAfter):
        build(folder, folder / "store")
    monkeypatch.undo()
    (work,) = (folder / "work").iterdir()
    (work / f"00000000-left{TEMPORARY}x").mkdir()
    for path in work.rglob("validation"):
        path.unlink()
    assert build(folder, folder / "store") == expected
    assert files(folder / "work") == []


def stop_after_shards(monkeypatch: pytest.MonkeyPatch, shards: int) -> None:
    from torchrelay.data.build.journal import Journal

    add = Journal.add_shard
    count = 0

    def stop(self: Journal, *arguments: object) -> None:
        nonlocal count
        count += 1
        if count > shards:
            raise StopAfter
        add(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Journal, "add_shard", stop)


def test_what_was_read_while_bad_input_stopped_it_is_kept_for_a_build_that_skips(tmp_path: Path) -> None:
    lines = [f'{{"t": "{number} {"x" * 50}"}}\n' for number in range(300)]
    (tmp_path / "in.jsonl").write_text("".join([*lines[:200], "{bad\n", *lines[200:]]))
    source = JsonLines(patterns=[f"{tmp_path}/in.jsonl"], field="t")
    options: dict[str, object] = {"shard_bytes": 2048, "unit_bytes": 1000, "work": tmp_path / "work"}
    with pytest.raises(DataError, match=r"in.jsonl:201: not valid JSON"):
        build_dataset(
            FileStore(tmp_path / "store"), "d",
            BuildRequest(documents=source, **options), progress=lambda *_: None,  # type: ignore[arg-type]
        )  # fmt: skip
    (work,) = [path for path in (tmp_path / "work").iterdir() if path.is_dir()]
    units = len([path for path in work.iterdir() if path.name[0] == "0"])
    made = build_dataset(
        FileStore(tmp_path / "store"), "d",
        BuildRequest(documents=source, on_bad="skip", **options), progress=lambda *_: None,  # type: ignore[arg-type]
    )  # fmt: skip
    assert units >= 1
    assert made.manifest.build.skipped == 1
    assert made.skipped[0].startswith(f"{tmp_path}/in.jsonl:201: not valid JSON")
    assert made.skipped_list is not None and made.skipped[0] in made.skipped_list.read_text().replace(
        '\\"', '"'
    )


def test_a_second_build_of_the_same_request_is_refused(folder: Path) -> None:
    process = start(folder, 2)
    try:
        while not (works := list((folder / "work").glob("*/progress.jsonl"))):
            assert process.poll() is None
        os.kill(process.pid, signal.SIGSTOP)
        with pytest.raises(DataError, match="another process is making the same build"):
            build(folder, folder / "store")
    finally:
        process.kill()
        process.wait()
    with hold_folder(works[0].parent):
        pass
