import json
from typing import Any

import pytest

from tests.unit.data.adopt.conftest import Place
from torchrelay.core.errors import DataError

LEAF = {"type": None, "context": None, "children_spec": []}


def refuse(place: Place, message: str) -> None:
    with pytest.raises(DataError, match=message):
        place.adopt()
    assert place.nothing_published()


def edit(place: Place, part: str, **changes: Any) -> None:
    """Change the config, or the first chunk, of the index."""
    tree = json.loads(place.data.get("index.json"))
    (tree["config"] if part == "config" else tree["chunks"][0]).update(changes)
    place.data.put("index.json", json.dumps(tree).encode())


@pytest.mark.parametrize(
    ("part", "changes", "message"),
    [
        ("config", {"data_format": ["pickle"] * 9}, "'image' is a pickle, which could run any code"),
        ("config", {"data_format": ["graph"] * 9}, "'image': values of the encoding 'graph' are not read"),
        ("config", {"data_format": ["no_header_tensor:10"] * 9}, "'image': arrays of the type number 10"),
        ("config", {"data_format": ["int"]}, "index.json: "),
        ("config", {"encryption": {"algorithm": "fernet"}}, "the chunks are encrypted"),
        ("config", {"compression": "zstd", "compression_level": "batch"}, "of every batch are not read"),
        ("config", {"compression": "lz4"}, "compression 'lz4' of every chunk are not read"),
        ("chunk", {"filename": "gone.bin"}, "gone.bin is missing; .*index.json names it"),
        ("chunk", {"chunk_bytes": 5}, r"chunk-0-0.bin has [\d,]+ bytes, .*index.json says 5"),
        ("chunk", {"chunk_size": 11}, "chunk-0-0.bin: it has 12 items, its index says 11"),
        ("chunk", {"filename": "../x.bin"}, "lies outside of its folder"),
    ],
)
def test_an_index_that_does_not_fit_is_refused(
    local: Place, part: str, changes: dict[str, Any], message: str
) -> None:
    edit(local.put("litdata"), part, **changes)
    refuse(local, message)


@pytest.mark.parametrize("at", [8, 60, 61])
def test_a_damaged_chunk_is_named(place: Place, at: int) -> None:
    place.put("litdata").flip("chunk-0-1.bin", at)
    refuse(place, "chunk-0-1.bin: (the offsets|item 0 at byte)")


def test_a_compressed_chunk_that_is_cut_off_is_named(place: Place) -> None:
    place.put("litdata-zstd").cut("chunk-0-1.zstd.bin", 300)
    refuse(place, "chunk-0-1.zstd.bin: the zstd stream is cut off at byte 300")


@pytest.mark.parametrize(
    ("part", "changes", "message"),
    [
        ("chunk", {"chunk_size": 11}, "chunk-0-0.bin: it has 12 rows, its index says 11"),
        ("config", {"ipc_compression": "zstd"}, "rows that are compressed with zstd inside their chunk"),
    ],
)
def test_an_index_of_rows_that_does_not_fit_is_refused(
    local: Place, part: str, changes: dict[str, Any], message: str
) -> None:
    edit(local.put("litdata-rows"), part, **changes)
    refuse(local, message)


def test_damaged_rows_are_named(place: Place) -> None:
    place.put("litdata-rows").flip("chunk-0-1.bin", -30)
    refuse(place, "chunk-0-1.bin: it is not an Arrow file")


def test_another_number_of_tokens_is_named(local: Place) -> None:
    edit(local.put("litdata-tokens"), "chunk", dim=7)
    refuse(local, "chunk-0-0.bin: it holds 490 tokens, its index says 7")


def test_tokens_that_are_no_whole_numbers_are_refused(local: Place) -> None:
    edit(local.put("litdata-tokens"), "config", data_format=["no_header_tensor:1"])
    refuse(local, "tokens of no_header_tensor:1 are not read")


def test_values_in_each_other_get_names_with_dots(local: Place) -> None:
    local.put("litdata")
    inner = {"type": "builtins.dict", "context": '["a", "b"]', "children_spec": [LEAF, LEAF]}
    items = {"type": "builtins.list", "context": "[]", "children_spec": [LEAF, LEAF]}
    outer = {
        "type": "builtins.dict",
        "context": json.dumps(["x", "deep", "y", "many", "z", "last"]),
        "children_spec": [LEAF, inner, LEAF, items, LEAF, inner],
    }
    edit(local, "config", data_spec=json.dumps([1, outer]))
    names = [column.name for column in local.adopt().manifest.content.columns]
    assert names == ["x", "deep.a", "deep.b", "y", "many.0", "many.1", "z", "last.a", "last.b"]
    assert list(local.samples()[0]) == names
