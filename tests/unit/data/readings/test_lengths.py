from dataclasses import replace

import pytest

from tests.unit.data.readings.support import Tokens, document, located
from torchrelay.core.errors import DataError
from torchrelay.data.readings import lengths as module
from torchrelay.data.readings.lengths import DocumentLengths

SHARDS = [[document(0, n) for n in (3, 0, 8)], [document(0, n) for n in (1, 20)]]


def test_lengths_come_from_the_footers_alone_and_once() -> None:
    dataset = Tokens(SHARDS)
    lengths = DocumentLengths(dataset.shards(), dataset.content)
    places = located((1, 1), (0, 2), (-1, -1), (0, 1), (1, 0), (0, 0))
    for _ in range(3):
        assert lengths.located(places).tolist() == [21, 9, 0, 1, 2, 4]
    assert sorted(dataset.source.tails) == ["shards/0.tok", "shards/1.tok"]
    assert dataset.source.opened == []


def test_few_shards_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_REMEMBERED", 4)
    dataset = Tokens(SHARDS)
    lengths = DocumentLengths(dataset.shards(), dataset.content)
    for shard in (0, 1, 1, 0):
        assert lengths.shard(shard).size == len(SHARDS[shard])
    assert dataset.source.tails == ["shards/0.tok", "shards/1.tok", "shards/0.tok"]


def test_other_formats_are_opened() -> None:
    dataset = Tokens(SHARDS)
    lengths = DocumentLengths(dataset.shards(), replace(dataset.content, token_dtype=None))
    assert lengths.located(located((0, 2), (1, 1))).tolist() == [9, 21]
    assert dataset.source.tails == []


def test_a_damaged_footer_is_named() -> None:
    dataset = Tokens(SHARDS)
    dataset.source.held["shards/0.tok"] += b"x"
    with pytest.raises(DataError, match="shard shards/0.tok is damaged: it ends with"):
        DocumentLengths(dataset.shards(), dataset.content).shard(0)
