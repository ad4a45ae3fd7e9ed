from dataclasses import replace

import numpy as np
import pytest

from tests.unit.data.formats.test_mds import COLUMNS, make_entry, make_sample, make_shard
from torchrelay.core.errors import DataError
from torchrelay.data.formats.ids import read_ids
from torchrelay.data.formats.tok import Footer, encode_footer
from torchrelay.data.manifest import Content, ShardEntry

SAMPLES = Content(kind="samples", format="mds", splits={}, columns=COLUMNS)
TOKENS = Content(kind="tokens", format="tok", splits={}, token_dtype="u16")


class Tail:
    """Only the end of a shard can be read."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.starts: list[int] = []

    def tail(self, entry: ShardEntry, start: int) -> bytes:
        self.starts.append(start)
        return self.data[start:]


def test_ids_of_samples_are_read_from_the_tail_alone() -> None:
    data = make_shard(COLUMNS, [make_sample(9)] * 3)
    source = Tail(data)
    found = read_ids(source, make_entry(data, 3), SAMPLES)
    assert found is not None and found.tolist() == [100, 101, 102]
    assert source.starts == [len(data) - 36]


def test_ids_of_documents_are_read_from_the_footer_alone() -> None:
    footer = Footer(5, "u16", np.array([2, 5], np.uint64), np.array([7, 2**63], np.uint64), None, None, False)
    data = bytes(10) + encode_footer(footer)
    entry = replace(make_entry(data, 2), tokens=5)
    source = Tail(data)
    found = read_ids(source, entry, TOKENS)
    assert found is not None and found.tolist() == [7, 2**63]
    assert source.starts == [16]


def test_adopted_shards_have_none() -> None:
    data = make_shard(COLUMNS, [make_sample(9)] * 3, tail=False)
    assert read_ids(Tail(data), make_entry(data, 3), SAMPLES) is None
    assert read_ids(Tail(b""), replace(make_entry(b"", 3)), SAMPLES) is None
    assert read_ids(Tail(data), replace(make_entry(data, 3), unpack="zstd"), SAMPLES) is None
    assert read_ids(Tail(data), make_entry(data, 3), replace(SAMPLES, format="parquet")) is None


def test_a_damaged_tail_is_named() -> None:
    data = make_shard(COLUMNS, [make_sample(9)] * 3)
    with pytest.raises(DataError, match=r"shard shards/x.mds is damaged: its tail tells 3 samples"):
        read_ids(Tail(data), make_entry(data, 2), SAMPLES)
    with pytest.raises(DataError, match="is damaged"):
        read_ids(Tail(bytes(40)), replace(make_entry(bytes(40), 2), tokens=5), TOKENS)
