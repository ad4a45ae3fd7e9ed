import os
import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.observe.support import CHECKPOINT, START, STOP, samples_record, step_record
from torchrelay.core.errors import StoreError
from torchrelay.observe import journal
from torchrelay.observe.journal import (
    BATCH_S,
    FileJournal,
    SegmentJournal,
    counting_steps,
    open_journal,
    read_journal,
    read_summary,
)
from torchrelay.observe.status import summarise
from torchrelay.store.base import Entry
from torchrelay.store.files import FileStore
from torchrelay.store.open import open_store


class Ticking:
    """A clock that tests move."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Away:
    """A store that refuses to write for a while, and tells when it did."""

    url = "fake://away"

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.objects: dict[str, bytes] = {}
        self.asked = threading.Event()
        self.stored = threading.Event()

    def put(self, key: str, data: bytes, *, if_absent: bool = False) -> None:
        self.asked.set()
        if self.failures:
            self.failures -= 1
            raise StoreError("away")
        self.objects[key] = data
        self.stored.set()

    def get(self, key: str) -> bytes:
        return self.objects[key]

    def list(self, prefix: str) -> Iterator[Entry]:
        return iter([Entry(key, len(data), 0.0) for key, data in sorted(self.objects.items())])

    def local_path(self, key: str) -> None:
        return None


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path)


def kinds(store: FileStore) -> list[str]:
    return [record["kind"] for record in read_journal(store, "t")]


def test_a_record_is_in_the_file_when_write_returns(store: FileStore) -> None:
    sink = open_journal(store, "t", 1, clock=lambda: 12.5)
    sink.write(START)
    (record,) = read_journal(store, "t")
    assert (record["kind"], record["time"], record["run"], record["parameters"]) == (
        "start",
        12.5,
        "t",
        1_240_000,
    )
    sink.close()


def test_step_records_wait_for_each_other_but_never_longer_than_a_batch(store: FileStore) -> None:
    clock = Ticking()
    sink = open_journal(store, "t", 1, clock=clock)
    sink.write(step_record(1))
    for step in (2, 3):
        sink.write(step_record(step))
    assert [r["step"] for r in read_journal(store, "t")] == [1]
    clock.now_s += 1.01 * BATCH_S
    sink.write(step_record(4))
    assert [r["step"] for r in read_journal(store, "t")] == [1, 2, 3, 4]
    sink.close()


def test_flush_writes_what_waits_so_that_a_checkpoint_never_outruns_the_records_before_it(
    store: FileStore,
) -> None:
    sink = open_journal(store, "t", 1, part=".samples-rank-00001", clock=lambda: 1.0)
    for step in range(1, 6):
        sink.write(samples_record(step, rank=1))
    assert len(kinds(store)) < 5
    sink.flush()
    assert [r["ids"] for r in read_journal(store, "t")] == [[step, 1] for step in range(1, 6)]
    sink.flush()
    assert len(kinds(store)) == 5
    sink.close()


def test_any_other_record_is_written_at_once_with_the_steps_before_it(store: FileStore) -> None:
    sink = open_journal(store, "t", 1, clock=lambda: 1.0)
    sink.write(step_record(1))
    sink.write(step_record(2))
    sink.write(CHECKPOINT)
    assert kinds(store) == ["step", "step", "checkpoint"]
    sink.close()


def test_a_last_line_cut_short_is_left_out(store: FileStore) -> None:
    sink = open_journal(store, "t", 1)
    sink.write(START)
    sink.write(STOP)
    sink.close()
    path = store.local_path("runs/t/journal/attempt-0001.jsonl")
    path.write_bytes(path.read_bytes()[:-20])
    assert kinds(store) == ["start"]


@given(cut=st.integers(min_value=0))
def test_wherever_a_journal_is_cut_all_whole_lines_are_read(tmp_path_factory, cut: int) -> None:
    store = FileStore(tmp_path_factory.mktemp("cut"))
    sink = open_journal(store, "t", 1, clock=lambda: 1.0)
    for step in range(1, 5):
        sink.write(step_record(step))
    sink.close()
    path = store.local_path("runs/t/journal/attempt-0001.jsonl")
    content = path.read_bytes()
    cut %= len(content) + 1
    path.write_bytes(content[:cut])
    whole = content[:cut].count(b"\n") + (content[cut : cut + 1] == b"\n")
    assert [r["step"] for r in read_journal(store, "t")] == list(range(1, whole + 1))


def test_a_full_disk_costs_records_but_never_the_training_nor_the_records_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "runs/t/journal/attempt-0001.jsonl"
    path.parent.mkdir(parents=True)
    sink = FileJournal(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), lambda: 1.0)
    write = os.write

    def refuse(descriptor: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    sink.write(START)
    with monkeypatch.context() as patch:
        patch.setattr(journal.os, "write", refuse)
        sink.write(CHECKPOINT)
    with monkeypatch.context() as patch:
        patch.setattr(journal.os, "write", lambda descriptor, data: write(descriptor, data[:10]))
        sink.write(CHECKPOINT)
    assert sink.lost == 2
    sink.write(STOP)
    sink.close()
    assert kinds(FileStore(tmp_path)) == ["start", "stop"]


def test_attempts_follow_each_other_and_the_launchers_word_comes_after_its_attempt(store: FileStore) -> None:
    for attempt, part in ((2, ""), (1, ".samples-rank-00000"), (1, ".launcher"), (1, "")):
        sink = open_journal(store, "t", attempt, part=part)
        sink.write(step_record(attempt * 10 + len(part)))
        sink.close()
    assert [r["step"] for r in read_journal(store, "t")] == [10, 19, 29, 20]


def test_steps_that_count_are_the_last_ones_of_each_number() -> None:
    records = [
        {"kind": "step", "step": 1, "loss": 1.0},
        {"kind": "step", "step": 2, "loss": 2.0},
        {"kind": "checkpoint", "step": 1},
        {"kind": "step", "step": 2, "loss": 2.5},
        {"kind": "step", "step": 3, "loss": 3.0},
    ]
    assert [(r["step"], r["loss"]) for r in counting_steps(iter(records))] == [(1, 1.0), (2, 2.5), (3, 3.0)]


def test_an_object_store_gets_immutable_segments_in_order() -> None:
    store = open_store("memory://journal-segments")
    sink = open_journal(store, "t", 1)
    assert isinstance(sink, SegmentJournal)
    sink.write(START)
    sink.flush()
    sink.write(step_record(1))
    sink.write(step_record(2))
    sink.close()
    keys = [entry.key.rsplit("/", 1)[1] for entry in store.list("runs/t/journal")]
    assert keys == ["attempt-0001.000001.jsonl", "attempt-0001.000002.jsonl"]
    assert [r.get("step") for r in read_journal(store, "t")] == [None, 1, 2]


def test_a_segment_with_nothing_in_it_is_not_written() -> None:
    store = open_store("memory://journal-empty")
    sink = open_journal(store, "t", 1)
    sink.flush()
    sink.close()
    assert list(store.list("runs/t/journal")) == []


def test_records_outlive_a_store_that_is_away_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "SEGMENT_S", 0.001)
    store = Away(failures=3)
    sink = open_journal(store, "t", 1)  # type: ignore[arg-type]  # only what a journal needs
    sink.write(START)
    assert store.stored.wait(timeout=30)
    sink.write(STOP)
    sink.close()
    assert store.failures == 0
    assert [r["kind"] for r in read_journal(store, "t")] == ["start", "stop"]  # type: ignore[arg-type]
    assert sorted(store.objects)[0].endswith("attempt-0001.000001.jsonl")


def test_the_thread_writes_segments_without_being_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "SEGMENT_S", 0.001)
    store = Away(failures=0)
    sink = open_journal(store, "t", 1)  # type: ignore[arg-type]  # only what a journal needs
    sink.write(START)
    assert store.stored.wait(timeout=30)
    sink.close()


def test_a_summary_reads_all_that_a_status_needs_and_no_more(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    moments = count(1000)
    for attempt in (1, 2):
        sink = open_journal(store, "t", attempt, clock=lambda: next(moments))
        log = open_journal(store, "t", attempt, part=".samples-rank-00000", clock=lambda: next(moments))
        sink.write(START)
        for step in range(50):
            sink.write(step_record(step, attempt=attempt))
            log.write(samples_record(step))
        sink.write(CHECKPOINT)
        sink.write(step_record(50, attempt=attempt))
        sink.close()
        log.close()
    whole, summary = list(read_journal(store, "t")), list(read_summary(store, "t", steps=3))
    assert [r["step"] for r in summary if r["kind"] == "step"] == [48, 49, 50, 48, 49, 50]
    others = ("start", "checkpoint")
    assert [r for r in summary if r["kind"] in others] == [r for r in whole if r["kind"] in others]
    assert {r["kind"] for r in summary} == {"start", "step", "checkpoint"}
    assert summarise("t", read_summary(store, "t"), now_s=2000.0) == summarise("t", whole, now_s=2000.0)
