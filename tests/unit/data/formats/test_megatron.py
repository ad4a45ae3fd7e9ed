import numpy as np
import pytest

from torchrelay.data.formats.index_file import write_index
from torchrelay.data.formats.megatron import open_megatron, write_ends
from torchrelay.data.manifest import ShardEntry

DATA = memoryview(np.arange(6, dtype="<u2").tobytes())


def make_entry(**fields: object) -> ShardEntry:
    told = {"tokens": 6, "samples": 2, **fields}
    return ShardEntry(key="x.bin", bytes=12, sha256="", xxh3_128="", **told)


def test_tokens_and_ends_are_views() -> None:
    shard = open_megatron(DATA, make_entry(continues=True), write_ends(np.array([2, 6])), "u16")
    assert (shard.tokens.tolist(), shard.ends.tolist()) == ([0, 1, 2, 3, 4, 5], [2, 6])
    assert np.shares_memory(shard.tokens, np.frombuffer(DATA, np.uint8))
    assert shard.continues
    assert (shard.ids, shard.labels, shard.packs) == (None, None, None)


@pytest.mark.parametrize(
    ("index", "fields", "message"),
    [
        (None, {}, "names no index file"),
        (write_ends(np.array([2])), {}, "one of megatron with 1 documents"),
        (write_index({"format": "webdataset"}, np.zeros(2, np.uint64)), {}, "one of webdataset"),
        (write_ends(np.array([2, 7])), {}, "it holds 6 tokens"),
        (write_ends(np.array([2, 5])), {"tokens": 5}, "it holds 6 tokens, the manifest says 5"),
    ],
)
def test_what_does_not_fit_the_entry_is_refused(
    index: bytes | None, fields: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        open_megatron(DATA, make_entry(**fields), index, "u16")
