"""Waiting for another process that fetches."""

import threading
from pathlib import Path

import pytest

from tests.unit.data.cache.support import SIZE, ToyStore, content, fill, open_cache
from torchrelay.data.cache.carrier import await_arrival
from torchrelay.data.cache.folder import Arriving, Folder, create_incoming

DEADLINE_S = 20.0


def test_a_holder_without_progress_is_named_with_the_shard(tmp_path: Path) -> None:
    entry = fill(ToyStore(), 1)[0]
    folder = Folder(tmp_path)
    folder.make()
    incoming = create_incoming(folder, entry.sha256, SIZE)
    incoming.write(b"x" * 10)
    arriving = Arriving(incoming.path, entry.sha256, SIZE, 10)
    with pytest.raises(TimeoutError) as caught:
        await_arrival(arriving, entry, 0.02)
    said = str(caught.value)
    assert "shard s0" in said and f"process {arriving.holder} " in said and "10 of 1,000 bytes" in said
    incoming.close()
    await_arrival(arriving, entry, 0.02)


def test_readers_in_two_processes_share_one_fetch(tmp_path: Path) -> None:
    store = ToyStore()
    entry = fill(store, 1)[0]
    going, gate = threading.Event(), threading.Event()

    def hold(key: str, data: bytes) -> bytes:
        going.set()
        assert gate.wait(DEADLINE_S)
        return data

    store.answer = hold
    found: list[bytes] = []
    threads = [
        threading.Thread(target=lambda: found.append(bytes(open_cache(store, tmp_path, SIZE).open(entry))))
        for _ in range(3)
    ]
    threads[0].start()
    assert going.wait(DEADLINE_S)
    for thread in threads[1:]:
        thread.start()
    gate.set()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert found == [content(0)] * 3 and store.gets.total() == 1


def test_a_reader_goes_past_a_holder_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, told = ToyStore(), list[str]()
    entry = fill(store, 1)[0]
    folder = Folder(tmp_path)
    folder.make()
    incoming = create_incoming(folder, entry.sha256, SIZE)
    cache = open_cache(store, tmp_path, SIZE, told)
    monkeypatch.setattr(cache._carrier, "_patience_s", 0.02)
    assert bytes(cache.open(entry)) == content(0)
    assert cache.meter.take().in_memory == 1 and "stuck at 0 of 1,000 bytes" in told[0]
    incoming.close()
