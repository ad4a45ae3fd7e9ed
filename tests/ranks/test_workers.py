"""Decode workers, in real processes: what they give, and what is left of them."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from tests.ranks import worker_source
from tests.unit.checkpoint.support import ALONE
from torchrelay.core.errors import DataError
from torchrelay.data.build.sample_writer import ShardContent, write_sample_shard
from torchrelay.data.dataset import open_dataset
from torchrelay.data.figures import Figures
from torchrelay.data.formats.mds import SampleEncoder
from torchrelay.data.loader import SplitReader, open_split
from torchrelay.data.manifest import BuildRecord, Column, Content, make_manifest
from torchrelay.data.publish import publish
from torchrelay.data.reader_spec import ReaderSpec
from torchrelay.data.worker_pool import PoolLimits, WorkerPool
from torchrelay.recipe.data_schema import DataSection
from torchrelay.store.base import Store
from torchrelay.store.open import open_store
from torchrelay.train.feed import Feed
from torchrelay.train.units import share_units

pytestmark = pytest.mark.ranks

SOURCE = "tests.ranks.worker_source"


def open_numbers(function: str = "open_data", **options: Any) -> SplitReader:
    section = DataSection(source=f"{SOURCE}:{function}", options=options, shuffle=False)
    return open_split(section, open_store("memory://pool"), "train", seed=3)


def spec_of(function: str = "open_data", **options: Any) -> ReaderSpec:
    section = DataSection(source=f"{SOURCE}:{function}", options=options, shuffle=False)
    return ReaderSpec(section=section, store="memory://pool", split="train", seed=3)


def pool_of(*, workers: int = 2, timeout_s: float = 60.0, held: int = 2**30, **options: Any) -> WorkerPool:
    return WorkerPool(spec_of(**options), PoolLimits(workers=workers, timeout_s=timeout_s, bytes=held))


def batches_of(size: int, count: int) -> list[Any]:
    return [np.arange(size * n, size * n + size, dtype=np.int64) for n in range(count)]


def demand_equal(reader: SplitReader, slots: Any, batch: Any) -> None:
    expected = reader.read(slots)
    assert batch.sample_ids.tolist() == expected.sample_ids.tolist()
    assert list(batch.tensors) == list(expected.tensors)
    for name, tensor in expected.tensors.items():
        assert batch.tensors[name].equal(tensor)
        assert batch.tensors[name].dtype == tensor.dtype
    assert (batch.num_targets, batch.num_tokens) == (expected.num_targets, expected.num_tokens)


def gone(pids: list[int], *, within_s: float) -> bool:
    processes = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    return psutil.wait_procs(processes, timeout=within_s)[1] == []


@pytest.mark.parametrize(("workers", "size", "held"), [(1, 5, 2**30), (3, 4, 1)])
def test_workers_give_what_reading_here_gives_in_the_same_order(workers: int, size: int, held: int) -> None:
    reader, wanted = open_numbers(), batches_of(size, 25)  # several epochs: what is drawn differs
    read = list(pool_of(workers=workers, held=held).read(iter(wanted)))
    assert len(read) == len(wanted)
    for slots, batch in zip(wanted, read, strict=True):
        demand_equal(reader, slots, batch)


@pytest.mark.parametrize(("prefetch", "micro_batch", "workers"), [(0, 2, 1), (2, 3, 4), (1, 6, 2)])
def test_a_rank_reads_the_same_steps_with_any_number_of_workers(
    prefetch: int, micro_batch: int, workers: int
) -> None:
    def steps(**data: Any) -> list[list[Any]]:
        section = DataSection(source=f"{SOURCE}:open_data", **data)
        feed = Feed(
            reader=open_split(section, open_store("memory://pool"), "train", seed=3, global_batch=12),
            world=replace(ALONE, rank=1, size=2),
            share=share_units(12 // micro_batch, rank=1, num_processes=2),
            global_batch=12,
            micro_batch=micro_batch,
            seed=3,
            section=section,
        )
        return list(feed.stream(3, 12))

    for batches, others in zip(steps(prefetch=prefetch, workers=workers), steps(), strict=True):
        assert len(batches) == len(others) == 6 // micro_batch
        for batch, other in zip(batches, others, strict=True):
            assert batch.sample_ids.tolist() == other.sample_ids.tolist()
            assert all(batch.tensors[name].equal(tensor) for name, tensor in other.tensors.items())


def write_samples(folder: Path, name: str = "d", *, packed: bool = False) -> Store:
    """A dataset of 40 samples in 5 shards: the bytes of their numbers."""
    store = open_store(str(folder))
    columns = (Column(name="data", dtype="bytes"),)
    encoder = SampleEncoder(columns)
    shards = []
    for first in range(0, 40, 8):
        pieces = [encoder.encode({"data": n.to_bytes(4, "little")}) for n in range(first, first + 8)]
        content = ShardContent(pieces, [len(piece) for piece in pieces], np.arange(8, dtype=np.uint64))
        entry = write_sample_shard(store, f"datasets/{name}", encoder.header, content)
        shards.append(worker_source.pack(store, entry) if packed else entry)
    splits = {"train": tuple(shards)}
    content_of_all = Content(kind="samples", format="mds", splits=splits, columns=columns)
    publish(store, make_manifest(name, content_of_all, BuildRecord(arguments={}, code="", created="")), None)
    return store


def test_samples_of_a_store_are_decoded_the_same_anywhere_and_after_a_resume(tmp_path: Path) -> None:
    section = DataSection(
        dataset="d", decode=f"{SOURCE}:decode", decode_options={"scale": 3}, lanes=2, window_shards=2
    )
    store = write_samples(tmp_path)
    reader = open_split(section, store, "train", seed=3, global_batch=8)
    wanted = [np.arange(4 * n, 4 * n + 4) for n in range(4, 24)]
    expected = [reader.read(slots) for slots in wanted]
    numbers = [number for batch in expected for number in batch.tensors["x"][:, 0].tolist()]
    assert sorted(numbers[24:64]) == [3 * n for n in range(40)]  # turns 40 to 79 are the second epoch
    resumed = open_split(section, store, "train", seed=3, global_batch=8)
    resumed.go_on(reader.position(2), step=2)
    assert resumed.spec is not None
    pool = WorkerPool(resumed.spec, PoolLimits(workers=2, timeout_s=60.0, bytes=2**30))
    for batch, other in zip(pool.read(iter(wanted)), expected, strict=True):
        assert batch.sample_ids.tolist() == other.sample_ids.tolist()
        assert all(batch.tensors[name].equal(tensor) for name, tensor in other.tensors.items())


def feed_of(store: Store, **data: Any) -> Feed:
    """A rank that runs every step of 8 samples alone, as 2 micro-batches."""
    section = DataSection(**{"lanes": 2, "window_shards": 2, "decode": f"{SOURCE}:decode", **data})
    return Feed(
        reader=open_split(section, store, "train", seed=3, global_batch=8),
        world=ALONE,
        share=share_units(2, rank=0, num_processes=1),
        global_batch=8,
        micro_batch=4,
        seed=3,
        section=section,
    )


MIXTURE = ({"dataset": "d", "weight": 0.7}, {"dataset": "e", "weight": 0.3})


def test_a_mixture_with_gaps_is_read_the_same_with_any_workers_and_prefetch(tmp_path: Path) -> None:
    store = write_samples(tmp_path)
    write_samples(tmp_path, "e")

    def steps(workers: int, prefetch: int, skip: tuple[str, ...]) -> list[Any]:
        feed = feed_of(store, mixture=MIXTURE, skip=skip, workers=workers, prefetch=prefetch)
        with closing(feed.stream(2, 13)) as stream:
            batches = [batch for step in stream for batch in step]
        return [
            (batch.sample_ids.tolist(), {name: t.tolist() for name, t in batch.tensors.items()})
            for batch in batches
        ]

    skip = ("5..7", "30..42")
    expected = steps(0, 0, skip)
    assert len(expected) == 24
    assert {sample >= 40 for ids, _ in expected for sample in ids} == {True, False}  # of both parts
    assert steps(0, 0, ()) != expected
    for workers, prefetch in ((0, 3), (1, 0), (1, 1), (2, 0), (2, 1), (2, 4)):
        assert steps(workers, prefetch, skip) == expected


@pytest.mark.parametrize("workers", [0, 2])
def test_a_sample_that_the_function_cannot_decode_is_named_and_can_be_left_out(
    workers: int, tmp_path: Path
) -> None:
    store = write_samples(tmp_path)
    options = {"dataset": "d", "decode_options": {"broken": 21}, "workers": workers}
    with pytest.raises(DataError) as caught:
        list(feed_of(store, skip=("2..5",), **options).stream(1, 5))
    error, shard = caught.value, open_dataset(store, "d").manifest.splits["train"][2].key
    turns = feed_of(store, skip=("2..5",), **options).reader.locate(np.arange(40)).located.sample_ids
    slot = turns.tolist().index(21) + 3
    lines = Path(worker_source.__file__).read_text().splitlines()
    line = lines.index("    if number == broken:") + 2
    assert error.message == (
        f"sample 21, slot {slot}, epoch 0 (sample 5 of shard {shard}): data.decode {SOURCE}:decode raised "
        f"ZeroDivisionError: wrong on purpose at {worker_source.__file__}:{line}"
    )
    assert error.hint == f'mend the function; or leave it out with data.skip: ["{slot}..{slot + 1}"]'
    assert "wrong on purpose" in str(error.__cause__)
    list(feed_of(store, skip=("2..5", f"{slot}..{slot + 1}"), **options).stream(1, 4))


def test_what_workers_fetch_is_told_by_their_rank(tmp_path: Path) -> None:
    store = write_samples(tmp_path / "store", packed=True)
    cache = {"folder": str(tmp_path / "cache"), "size": "1GiB"}
    feed = feed_of(store, dataset="d", workers=2, cache=cache)
    list(feed.stream(1, 5))
    figures = feed.reader.figures()
    assert figures is not None
    assert figures.fetches == 5 <= figures.misses  # nobody fetches ahead here, so the workers did
    entries = open_dataset(store, "d").manifest.splits["train"]
    assert figures.fetched_bytes == sum(entry.bytes for entry in entries)
    assert feed.reader.figures() == Figures()


def test_where_nothing_is_wanted_nothing_is_given() -> None:
    assert list(pool_of(workers=1).read(iter([]))) == []


def test_few_batches_are_asked_for_ahead() -> None:
    taken = []

    def wanted() -> Iterator[Any]:
        for slots in batches_of(2, 50):
            taken.append(slots)
            yield slots

    read = pool_of(workers=2).read(wanted())
    for count in range(1, 10):
        next(read)
        assert len(taken) <= count + 4
    read.close()


def test_a_killed_worker_changes_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    reader, wanted, pool = open_numbers(), batches_of(4, 40), pool_of(workers=2)
    read, killed = pool.read(iter(wanted)), []
    for number, slots in enumerate(wanted):
        demand_equal(reader, slots, next(read))
        if number in (5, 6, 20):
            killed.append(pool.pids()[number % 2])
            os.kill(killed[-1], signal.SIGKILL)
    assert next(read, None) is None
    assert pool.replaced == len(killed) == 3
    told = capfd.readouterr().err
    assert all(f"decode worker {pid} died (exit code -9)" in told for pid in killed)


@pytest.mark.parametrize("fault", ["die", "sleep"])
def test_a_worker_that_dies_or_hangs_once_is_replaced(
    fault: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    wanted = batches_of(4, 10)
    pool = pool_of(timeout_s=1.0, fault=fault, fault_at=13, folder=str(tmp_path))
    ids = [batch.sample_ids.tolist() for batch in pool.read(iter(wanted))]
    assert ids == [slots.tolist() for slots in wanted]
    assert pool.replaced == 1
    told = capfd.readouterr().err
    assert "while reading slots 12, 13, 14, 15; another takes its place" in told
    if fault == "sleep":  # it tells where it hangs
        assert "gave no answer for 1 s and was killed" in told
        assert "worker_source.py" in told and "_go_wrong" in told


def test_a_stopped_worker_is_replaced() -> None:
    wanted, pool = batches_of(4, 30), pool_of(timeout_s=1.0)
    read = pool.read(iter(wanted))
    ids = [next(read).sample_ids.tolist()]
    stopped = pool.pids()[0]
    os.kill(stopped, signal.SIGSTOP)
    ids += [batch.sample_ids.tolist() for batch in read]
    assert ids == [(slots % 40).tolist() for slots in wanted]
    assert pool.replaced == 1
    assert gone([stopped], within_s=0)


def test_a_batch_that_costs_three_workers_is_named() -> None:
    pool = pool_of(workers=1, fault="always-die", fault_at=6)
    read = pool.read(iter(batches_of(4, 10)))
    assert next(read).sample_ids.tolist() == [0, 1, 2, 3]
    with pytest.raises(DataError) as caught:
        list(read)
    assert "died (exit code 9) while reading slots 4, 5, 6, 7, as 2 before it" in caught.value.message
    assert "its last words: no memory left, for example" in caught.value.message
    assert pool.pids() == []


def test_an_error_arrives_with_its_traceback_where_its_batch_would_have_come() -> None:
    read = pool_of(workers=1, fault="raise", fault_at=9).read(iter(batches_of(4, 10)))
    assert [next(read).sample_ids[0] for _ in range(2)] == [0, 4]
    with pytest.raises(DataError) as caught:
        next(read)
    message = caught.value.message
    assert message.startswith("a decode worker failed while reading slots 8, 9, 10, 11:\nTraceback")
    assert message.endswith("ZeroDivisionError: wrong on purpose")
    assert "in _go_wrong" in message


def test_an_error_of_torchrelay_stays_what_it_is() -> None:
    with pytest.raises(DataError, match="'x' of sample 0 is of type <U4, not a number"):
        list(pool_of(function="texts", workers=1).read(iter(batches_of(2, 1))))


def test_data_that_cannot_be_opened_is_told() -> None:
    with pytest.raises(DataError, match="failed while opening the data:\n(.*\n)*OSError: the source is not"):
        list(pool_of(fault="refuse", workers=1).read(iter(batches_of(2, 3))))


def test_requests_to_stop_do_not_end_workers_and_closing_does() -> None:
    pool = pool_of()
    read = pool.read(iter(batches_of(4, 1000)))
    next(read)
    pids = pool.pids()
    for pid in pids:
        os.kill(pid, signal.SIGTERM)
        os.kill(pid, signal.SIGINT)
    assert [next(read).sample_ids[0] for _ in range(8)] == [4 * n % 40 for n in range(1, 9)]
    assert (pool.replaced, pool.pids()) == (0, pids)
    read.close()
    assert gone(pids, within_s=0)


def test_a_request_to_stop_while_a_worker_starts_does_not_end_it() -> None:
    pool = pool_of(workers=1)
    read = pool.read(iter(batches_of(4, 3)))
    thread = threading.Thread(target=lambda: first.append(next(read)))
    first: list[Any] = []
    thread.start()
    while not pool.pids():
        pass
    os.kill(pool.pids()[0], signal.SIGTERM)
    thread.join()
    assert first[0].sample_ids.tolist() == [0, 1, 2, 3]
    assert pool.replaced == 0
    read.close()


def test_interrupting_ends_a_wait_for_a_worker_that_hangs(tmp_path: Path) -> None:
    pool = pool_of(workers=1, fault="sleep", fault_at=0, folder=str(tmp_path))
    read: list[Any] = []
    thread = threading.Thread(target=lambda: read.extend(pool.read(iter(batches_of(4, 3)))))
    thread.start()
    while not (tmp_path / "done").exists():  # it hangs now
        thread.join(0.01)
    pids = pool.pids()
    pool.interrupt()
    thread.join(10)
    assert not thread.is_alive()
    assert read == []
    assert gone(pids, within_s=0)


def test_workers_do_not_import_torch() -> None:
    [batch] = pool_of(function="without_torch", workers=1).read(iter(batches_of(1, 1)))
    [later] = pool_of(function="without_torch", workers=1).read(iter([np.array([1])]))
    assert batch.sample_ids.tolist() == later.sample_ids.tolist() == [0]  # its only sample


_PARENT = """\
import numpy, pathlib, sys, time
from tests.ranks.test_workers import batches_of, pool_of
from torchrelay.data.ahead import Limits, read_ahead
place, folder = sys.argv[1:]
pool = pool_of(fault="sleep" if place == "busy" else "", fault_at=13, folder=folder)
read = pool.read(iter(batches_of(4, 1000)))
if place == "ahead":
    read = read_ahead(read, lambda batch: 1, Limits(items=2, bytes=100, wait_s=60))
next(read)
while place == "busy" and not pathlib.Path(folder, "done").exists():
    time.sleep(0.01)
print(*pool.pids(), flush=True)
time.sleep(1000)
"""


@pytest.mark.parametrize("where", ["here", "ahead", "busy"])
def test_workers_die_with_their_parent(where: str, tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    words = [sys.executable, "-c", _PARENT, where, str(tmp_path)]
    with subprocess.Popen(words, cwd=root, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pids = [int(word) for word in parent.stdout.readline().split()]
        assert len(pids) == 2
        parent.kill()
    assert gone(pids, within_s=2)
