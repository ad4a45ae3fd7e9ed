import json
from typing import Any

import pytest
import xxhash

from tests.unit.data.adopt.conftest import Place
from torchrelay.core.errors import DataError
from torchrelay.data.formats.mds import SampleEncoder, encode_head
from torchrelay.data.manifest import Column

FIRST = "train/shard.00000.mds"


def refuse(place: Place, message: str) -> None:
    with pytest.raises(DataError, match=message):
        place.adopt()
    assert place.nothing_published()


def edit(place: Place, **changes: Any) -> None:
    """Change the first shard's part of the training index."""
    tree = json.loads(place.data.get("train/index.json"))
    tree["shards"][0] |= changes
    place.data.put("train/index.json", json.dumps(tree).encode())


def test_a_shard_that_is_missing_is_named_with_its_index(place: Place) -> None:
    place.put("mds").data.delete(FIRST)
    refuse(place, rf"{FIRST} is missing; .*train/index.json names it")


def test_a_shard_that_is_cut_off_is_named_with_both_sizes(place: Place) -> None:
    size = len(place.put("mds").data.get(FIRST))
    place.cut(FIRST, size - 1)
    refuse(place, rf"{FIRST} has {size - 1:,} bytes, .*train/index.json says {size:,}")


def put_equal_shards(place: Place, *, hashed: bool) -> None:
    """Two shards of the same size and shape, of three numbers each."""
    column = Column(name="n", dtype="int64", shape=())
    encoder = SampleEncoder([column])
    shards = []
    for shard in range(2):
        rows = [encoder.encode({"n": 3 * shard + number}) for number in range(3)]
        data = encode_head(encoder.header, [8, 8, 8]) + b"".join(rows)
        place.data.put(f"{shard}.mds", data)
        hashes = {"xxh3_64": xxhash.xxh3_64_hexdigest(data)} if hashed else {}
        raw = {"basename": f"{shard}.mds", "bytes": len(data), "hashes": hashes}
        config = json.loads(encoder.header)
        shards.append(config | {"samples": 3, "raw_data": raw, "zip_data": None})
    place.data.put("index.json", json.dumps({"version": 2, "shards": shards}).encode())


def test_shards_in_each_others_place_are_told_by_the_hashes_of_the_index(place: Place) -> None:
    put_equal_shards(place, hashed=True)
    place.adopt()
    assert [sample["n"] for sample in place.samples()] == [0, 1, 2, 3, 4, 5]
    first, second = place.data.get("0.mds"), place.data.get("1.mds")
    place.data.put("0.mds", second)
    place.data.put("1.mds", first)
    with pytest.raises(DataError, match="0.mds: its xxh3_64 is .*another shard was put in its place"):
        place.adopt()


def test_an_index_without_hashes_is_taken_at_its_word(local: Place) -> None:
    put_equal_shards(local, hashed=False)
    assert local.adopt().manifest.totals("train").samples == 6


@pytest.mark.parametrize("at", [0, 4, 60, -1])
def test_a_flipped_byte_is_told_by_the_hashes_of_the_index(place: Place, at: int) -> None:
    place.put("mds-zstd").flip("train/shard.00001.mds.zstd", at)
    refuse(place, "train/shard.00001.mds.zstd: (its sha1 is .*, its index says|the zstd stream is damaged)")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"samples": 13}, "it has 12 samples, its index says 13"),
        ({"version": 3}, "a shard is of format 'mds', version 3"),
        ({"format": "json"}, "a shard is of format 'json', version 2"),
        ({"raw_data": {"basename": "../../x.mds", "bytes": 1, "hashes": {}}}, "lies outside of its folder"),
        ({"column_encodings": ["pkl"] * 9}, "column 'data' holds pickles"),
        ({"column_encodings": ["what"] * 9}, "encoding 'what', which is not read"),
        ({"raw_data": None}, "index.json: "),
        ({"compression": "br", "zip_data": {"basename": "x", "bytes": 1, "hashes": {}}}, "only zstd is read"),
    ],
)
def test_an_index_that_does_not_fit_is_refused(local: Place, changes: dict[str, Any], message: str) -> None:
    edit(local.put("mds"), **changes)
    refuse(local, message)


def test_a_newer_index_is_refused_with_both_versions(local: Place) -> None:
    tree = json.loads(local.put("mds").data.get("train/index.json")) | {"version": 3}
    local.data.put("train/index.json", json.dumps(tree).encode())
    refuse(local, "train/index.json is of version 3; this torchrelay reads version 2")


def test_offsets_that_do_not_end_with_the_shard_are_refused(local: Place) -> None:
    local.put("mds").flip(FIRST, 4 * 13)  # the lowest byte of the last of 12 + 1 offsets
    refuse(local, f"{FIRST}: (it has .* bytes, its offsets end at|the offsets of its 12 samples are damaged)")


def test_an_index_of_parts_stands_for_those_below_it(local: Place) -> None:
    """As the library merges the folders that several writers made."""
    trees = []
    for part in ("train", "val"):
        for entry in list(local.put("mds").data.list(part)):
            local.data.put(f"all/{entry.key}", local.data.get(entry.key))
        tree = json.loads(local.data.get(f"{part}/index.json"))
        for shard in tree["shards"]:
            shard["raw_data"]["basename"] = f"{part}/{shard['raw_data']['basename']}"
        trees.append(tree)
    merged = {"version": 2, "shards": trees[0]["shards"] + trees[1]["shards"]}
    local.data.put("all/index.json", json.dumps(merged).encode())
    for entry in list(local.data.list("")):
        if not entry.key.startswith("all/"):
            local.data.delete(entry.key)
    manifest = local.adopt("all").manifest
    assert {split: local.samples(split)[-1]["label"] for split in manifest.splits} == {"train": 29 % 7}
    assert manifest.totals("train").samples == 30
