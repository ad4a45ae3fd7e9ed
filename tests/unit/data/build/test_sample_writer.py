import hashlib
from collections.abc import Sequence

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from torchrelay.core.errors import DataError
from torchrelay.data.build import sample_writer
from torchrelay.data.build.sample_writer import SampleWriter
from torchrelay.data.formats.mds import encode_sample, open_mds, parse_tail, tail_start
from torchrelay.data.manifest import Column, ShardEntry
from torchrelay.store.base import Store
from torchrelay.store.open import open_store

COLUMNS = (Column(name="raw", dtype="bytes"),)


def write(store: Store, samples: Sequence[bytes], shard_bytes: int = 1000) -> tuple[ShardEntry, ...]:
    writer = SampleWriter(store, "f", COLUMNS, shard_bytes)
    assert writer.is_empty
    for number, raw in enumerate(samples):
        writer.append(encode_sample(COLUMNS, {"raw": raw}), 2**63 + number)
        assert not writer.is_empty
    return writer.close()


def read(store: Store, entry: ShardEntry) -> list[bytes]:
    shard = open_mds(memoryview(store.get(f"f/{entry.key}")), entry, COLUMNS)
    return [bytes(shard.sample(number)["raw"]) for number in range(len(shard))]


@given(sizes=st.lists(st.integers(0, 700), max_size=40), shard_bytes=st.integers(300, 2000))
@settings(max_examples=60, deadline=None)
def test_no_sample_is_cut_or_lost_whatever_the_sizes(sizes: list[int], shard_bytes: int) -> None:
    store = open_store("memory://sample-writer")
    samples = [bytes([number]) * size for number, size in enumerate(sizes)]
    entries = write(store, samples, shard_bytes)
    assert [raw for entry in entries for raw in read(store, entry)] == samples
    assert all(entry.bytes <= shard_bytes or entry.samples == 1 for entry in entries)
    ids = [parse_tail(store.get(f"f/{e.key}", start=tail_start(e)), e.samples) for e in entries]
    assert [number for found in ids for number in found.tolist()] == [2**63 + n for n in range(len(samples))]
    assert entries == write(store, samples, shard_bytes)


def test_shards_are_filled_as_far_as_they_go(store: Store) -> None:
    (whole,) = write(store, [bytes(100)] * 10, 10_000)
    assert len(write(store, [bytes(100)] * 10, whole.bytes)) == 1
    assert [entry.samples for entry in write(store, [bytes(100)] * 10, whole.bytes - 1)] == [9, 1]


def test_the_entry_tells_what_was_written(store: Store) -> None:
    (entry,) = write(store, [b"abc"])
    data = store.get(f"f/{entry.key}")
    assert entry.key == f"shards/{entry.sha256[:2]}/{entry.sha256}.mds"
    assert (entry.bytes, entry.samples) == (len(data), 1)
    assert entry.sha256 == hashlib.sha256(data).hexdigest()
    assert entry.xxh3_128 == xxhash.xxh3_128_hexdigest(data)


def test_a_damaged_shard_is_healed_by_writing_again(store: Store) -> None:
    (entry,) = write(store, [b"abc"])
    store.put(f"f/{entry.key}", b"damaged")
    write(store, [b"abc"])
    assert read(store, entry) == [b"abc"]


def test_other_ids_make_another_shard(store: Store) -> None:
    keys = set()
    for sample_id in (1, 2):
        writer = SampleWriter(store, "f", COLUMNS, 1000)
        writer.append(encode_sample(COLUMNS, {"raw": b"x"}), sample_id)
        keys.add(writer.close()[0].key)
    assert len(keys) == 2


def test_a_sample_beyond_any_shard_is_refused(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> bytes:
        raise ValueError("a shard of 5,000,000,000 bytes is too large")

    monkeypatch.setattr(sample_writer, "encode_head", refuse)
    with pytest.raises(DataError, match="a sample is too large"):
        write(store, [b"x"])
    assert np.array(list(store.list("f"))).size == 0
