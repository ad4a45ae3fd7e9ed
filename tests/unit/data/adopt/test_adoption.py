"""Data written by other libraries, adopted and read back sample by sample."""

from typing import Any

import numpy as np
import pytest

from tests.data.adopted.values import DOCUMENTS, SPLITS, TAR_NAMES, sample
from tests.unit.data.adopt.conftest import Place
from torchrelay.core.errors import DataError
from torchrelay.data.adopt import megatron
from torchrelay.data.dataset import open_dataset
from torchrelay.data.loader import open_split
from torchrelay.data.manifest import Column
from torchrelay.recipe.data_schema import DataSection

MDS = ("data", "extra", "image", "label", "loose", "matrix", "steps", "text", "weight")


def equal(found: Any, expected: Any) -> bool:
    if isinstance(expected, np.ndarray):
        return (
            isinstance(found, np.ndarray)
            and not found.flags.writeable
            and (found.dtype, found.shape) == (expected.dtype, expected.shape)
            and np.array_equal(found, expected)
        )
    return found == expected and isinstance(found, type(expected))


def check(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    assert len(found) == len(expected) > 0
    for number, (left, right) in enumerate(zip(found, expected, strict=True)):
        assert set(left) == set(right)
        wrong = [name for name in right if not equal(left[name], right[name])]
        assert not wrong, (number, wrong, left, right)


def expect(numbers: range, names: tuple[str, ...]) -> list[dict[str, Any]]:
    rows = [sample(number) for number in numbers]
    return [{name: _plain(row[name]) for name in names} for row in rows]


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


@pytest.mark.parametrize("fixture", ["mds", "mds-zstd"])
def test_an_mds_folder_is_read_back(place: Place, fixture: str) -> None:
    result = place.put(fixture).adopt()
    assert result.manifest.content.format == "mds"
    assert result.manifest.base == place.data.url
    check(place.samples("train"), expect(SPLITS["train"], MDS))
    check(place.samples("validation"), expect(SPLITS["val"], MDS))
    assert {entry.unpack for entry in result.manifest.splits["train"]} == {
        "zstd" if "zstd" in fixture else None
    }


@pytest.mark.parametrize("fixture", ["webdataset", "webdataset-gzip"])
def test_tars_are_read_back(place: Place, fixture: str) -> None:
    result = place.put(fixture).adopt()
    rows = expect(range(15), tuple(TAR_NAMES))
    check(place.samples(), [{TAR_NAMES[name]: value for name, value in row.items()} for row in rows])
    columns = {column.name: column for column in result.manifest.content.columns}
    assert columns["x.npy"] == Column(name="x.npy", dtype="float32", shape=(2, 3))
    assert columns["steps.npy"] == Column(name="steps.npy", dtype="int64", shape=None)
    assert columns["cls"] == Column(name="cls", dtype="int64", shape=())
    assert (columns["jpg"].dtype, columns["txt"].dtype, columns["bin"].dtype) == ("jpeg", "str", "bytes")


def test_parquet_files_are_read_back(place: Place) -> None:
    result = place.put("parquet").adopt()
    names = ("image", "label", "weight", "text", "data", "extra", "matrix", "steps")
    for split, folder in (("train", "train"), ("validation", "val")):
        rows = expect(SPLITS[folder], names)
        for number, row in zip(SPLITS[folder], rows, strict=True):
            row |= {"flag": number % 2 == 0, "tag": f"tag{number % 3}", "time": number}
        check(place.samples(split), rows)
    columns = {column.name: column for column in result.manifest.content.columns}
    assert columns["image"].dtype == "jpeg"
    assert columns["matrix"] == Column(name="matrix", dtype="float32", shape=(2, 3))
    assert columns["flag"] == Column(name="flag", dtype="bool", shape=())


@pytest.mark.parametrize("fixture", ["litdata", "litdata-zstd"])
def test_litdata_chunks_are_read_back(place: Place, fixture: str) -> None:
    place.put(fixture).adopt()
    rows = []
    for number in range(30):
        values = sample(number)
        rows.append(
            {
                "image": values["data"],
                "label": values["label"],
                "weight": float(values["weight"]),
                "flag": number % 2 == 0,
                "text": values["text"],
                "matrix": values["matrix"],
                "tensor": values["matrix"].astype(np.float64),
                "steps": values["steps"],
                "half": values["steps"].astype(np.float16),
            }
        )
    check(place.samples(), rows)


def test_litdata_chunks_of_rows_are_read_back(place: Place) -> None:
    result = place.put("litdata-rows").adopt()
    check(place.samples(), expect(range(30), ("image", "label", "text", "data", "extra", "weight")))
    dtypes = {column.name: column.dtype for column in result.manifest.content.columns}
    assert dtypes == {
        "image": "jpeg",
        "label": "int64",
        "text": "str",
        "data": "bytes",
        "extra": "json",
        "weight": "float64",
    }


@pytest.mark.parametrize("span_bytes", [64, 200, 2**20])
@pytest.mark.parametrize(("fixture", "dtype"), [("megatron", "u16"), ("megatron-int32", "i32")])
def test_megatron_documents_are_read_back_whatever_the_spans(
    place: Place, fixture: str, dtype: str, span_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(megatron, "SPAN_BYTES", span_bytes)
    content = place.put(fixture).adopt(end_token=511).manifest.content
    assert (content.kind, content.format, content.token_dtype) == ("tokens", "megatron", dtype)
    assert content.tokenizer is not None
    assert (content.tokenizer.kind, content.tokenizer.vocabulary, content.tokenizer.end_token) == (
        "unknown",
        512,
        511,
    )
    check_tokens(place)


def test_litdata_tokens_are_read_back(place: Place) -> None:
    content = place.put("litdata-tokens").adopt().manifest.content
    assert (content.kind, content.token_dtype) == ("tokens", "i32")
    check_tokens(place)


def check_tokens(place: Place) -> None:
    """The shards hold the documents, one after the other, and the manifest describes them."""
    entries = open_dataset(place.store, "d").manifest.splits["train"]
    shards = place.tokens()
    assert np.concatenate([shard.tokens for shard in shards]).tolist() == sum(DOCUMENTS, [])
    starts = np.cumsum([0, *(shard.tokens.size for shard in shards)])
    ends = np.concatenate(
        [shard.ends.astype(np.int64) + start for shard, start in zip(shards, starts, strict=False)]
    )
    assert ends.tolist() == np.cumsum([len(document) for document in DOCUMENTS]).tolist()
    borders = {0, *ends.tolist()}
    for entry, shard, start in zip(entries, shards, starts, strict=False):
        assert (entry.samples, entry.tokens) == (len(shard.ends), shard.tokens.size)
        assert entry.continues == shard.continues == (int(start) not in borders)
    assert max(entry.longest for entry in entries) == max(map(len, DOCUMENTS))


def test_a_run_reads_adopted_tokens_like_any_others(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(megatron, "SPAN_BYTES", 600)
    entries = place.put("megatron").adopt(end_token=511).manifest.splits["train"]
    section = DataSection(dataset="d", sequence_length=10, lanes=2, window_shards=1, shuffle=False)
    reader = open_split(section, place.store, "train", seed=1)
    count = sum((entry.tokens - 1) // 10 for entry in entries)
    tensors = reader.read(np.arange(count)).tensors
    rows = {tuple(row) for row in np.hstack([tensors["tokens"], tensors["labels"][:, -1:]]).tolist()}
    expected = set()
    for shard in place.tokens():
        for start in range(0, shard.tokens.size - 10, 10):
            expected.add(tuple(shard.tokens[start : start + 11].tolist()))
    assert rows == expected and len(entries) > 3


@pytest.mark.parametrize(
    ("fixture", "key", "at"),
    [
        ("mds", "train/shard.00001.mds", -1),
        ("webdataset", "part-001.tar", 600),
        ("parquet", "train/part-010.parquet", 5),
        ("litdata", "chunk-0-1.bin", -1),
        ("megatron", "corpus.bin", 100),
    ],
)
def test_a_byte_that_changes_after_adoption_is_found_when_it_is_read(
    place: Place, fixture: str, key: str, at: int
) -> None:
    place.put(fixture).adopt()
    place.flip(key, at)
    with pytest.raises(DataError, match=rf"shard {key} of .* is damaged: .*(xxh3_128|sha256) is"):
        place.tokens() if fixture == "megatron" else place.samples()


@pytest.mark.parametrize("fixture", ["mds", "webdataset", "parquet", "litdata"])
def test_shards_that_change_places_after_adoption_are_found(place: Place, fixture: str) -> None:
    entries = place.put(fixture).adopt().manifest.splits["train"]
    first, second = place.data.get(entries[0].key), place.data.get(entries[1].key)
    place.data.put(entries[0].key, second)
    place.data.put(entries[1].key, first)
    with pytest.raises(DataError, match=f"shard {entries[0].key} of .* is damaged"):
        place.samples()


@pytest.mark.parametrize("fixture", ["mds-zstd", "webdataset-gzip", "parquet", "litdata-zstd"])
def test_the_size_after_unpacking_is_the_one_in_the_manifest(place: Place, fixture: str) -> None:
    entries = place.put(fixture).adopt().manifest.splits["train"]
    shards = place.shards("train")
    assert [len(shards.source.open(entry)) for entry in entries] == [entry.disk_bytes for entry in entries]
    assert all(entry.unpacked_bytes > 0 for entry in entries)


def test_not_a_byte_of_the_data_is_changed_or_copied(place: Place) -> None:
    before = {entry.key: place.data.get(entry.key) for entry in place.put("webdataset").data.list("")}
    place.adopt()
    assert {entry.key: place.data.get(entry.key) for entry in place.data.list("")} == before
    kinds = {entry.key.split("/")[2] for entry in place.store.list("datasets")}
    assert kinds == {"indexes", "versions", "refs"}


@pytest.mark.parametrize("damage", ["flipped", "cut", "missing"])
def test_a_file_that_changed_is_to_be_restored_or_adopted_again(place: Place, damage: str) -> None:
    place.put("webdataset").adopt()
    key = next(iter(place.shards("train").entries)).key
    if damage == "flipped":
        place.flip(key, 600)
    elif damage == "cut":
        place.cut(key, 600)
    else:
        place.data.delete(key)
    with pytest.raises(DataError) as caught:
        place.samples()
    assert f"shard {key} of {place.data.url}" in caught.value.message
    assert caught.value.hint.endswith(
        "; restore the file, or adopt the data again, which makes a new version"
    )


def test_adopting_again_gives_the_same_version_and_no_new_ref(place: Place) -> None:
    first = place.put("webdataset").adopt()
    again = place.adopt("part-{000..002}.tar")
    assert (first.manifest.version, first.ref, first.is_new) == (again.manifest.version, 1, True)
    assert (again.ref, again.is_new) == (1, False)


def test_one_more_shard_gives_a_new_version(place: Place) -> None:
    place.put("webdataset").adopt("part-00[01].tar")
    more = place.adopt()
    assert (more.ref, more.manifest.totals("train").samples) == (2, 15)


def test_a_split_is_a_folder_of_any_name(place: Place) -> None:
    for number in (0, 1):
        place.data.put(f"a{number}/x.tar", (place.put("webdataset").data.get(f"part-00{number}.tar")))
    result = place.adopt(split_folders={"train": "a0", "test": "a1"})
    assert {split: len(entries) for split, entries in result.manifest.splits.items()} == {
        "train": 1,
        "test": 1,
    }


def test_progress_reaches_the_size_of_the_data(local: Place) -> None:
    from torchrelay.data.adopt.adoption import AdoptRequest, adopt_dataset

    seen: list[tuple[str, int, int]] = []
    local.put("webdataset")
    adopt_dataset(
        local.store, "d", AdoptRequest(url=local.data.url), progress=lambda *told: seen.append(told)
    )
    total = sum(entry.size for entry in local.data.list(""))
    assert seen[-1] == ("adopting", total, total)
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)


def test_nothing_is_published_when_the_last_shard_is_bad(place: Place) -> None:
    place.put("webdataset").cut("part-002.tar", 3000)
    with pytest.raises(DataError, match=r"part-002.tar: it is cut off at byte 3,000") as caught:
        place.adopt()
    assert "nothing was adopted" in caught.value.hint
    assert place.nothing_published()


def test_the_same_shard_in_two_splits_is_refused(place: Place) -> None:
    place.put("webdataset")
    data = place.data.get("part-000.tar")
    for key in ("train/a.tar", "val/b.tar"):
        place.data.put(key, data)
    with pytest.raises(DataError, match=r"train/a.tar \(train\) and val/b.tar \(validation\) hold the same"):
        place.adopt("{train,val}/*.tar")
    assert place.nothing_published()


def test_a_share_for_validation_is_made_of_whole_shards(place: Place) -> None:
    result = place.put("webdataset").adopt(validation=0.5)
    splits = result.manifest.splits
    assert {len(splits["train"]), len(splits["validation"])} == {1, 2}
    for entry in splits["validation"]:
        assert int(entry.sha256[:8], 16) < 2**31


@pytest.mark.parametrize(
    ("fixture", "options", "message"),
    [
        ("mds", {"validation": 0.1}, "has its own splits"),
        ("webdataset", {"vocabulary": 5}, "holds samples, not tokens"),
        ("megatron", {"vocabulary": 511}, r"corpus.bin: token 2 \(byte 4\) is 511, the vocabulary has 511"),
        ("megatron", {"end_token": 3}, "document 0 ends with token 511, not with the end mark 3"),
        ("litdata-tokens", {"vocabulary": 300}, r"chunk-0-0.bin: token 2 \(byte 8\) is 511"),
        ("megatron", {"tokenizer": "/none.json", "end_token": 1}, "--tokenizer tells the vocabulary"),
        ("megatron", {"tokenizer": "/none.json"}, "cannot read the tokenizer /none.json"),
    ],
)
def test_options_that_do_not_fit_the_data_are_refused(
    local: Place, fixture: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        local.put(fixture).adopt(**options)
    assert local.nothing_published()


def test_a_vocabulary_may_be_larger_than_the_highest_token(local: Place) -> None:
    record = local.put("megatron").adopt(vocabulary=50_000).manifest.tokenizer
    assert (record.vocabulary, record.end_token, record.sha256) == (50_000, None, "")


def test_a_missing_index_file_is_named(place: Place) -> None:
    entry = place.put("webdataset").adopt().manifest.splits["train"][0]
    place.store.delete(f"datasets/d/{entry.index}")
    with pytest.raises(DataError, match=rf"datasets/d/{entry.index} is missing"):
        place.samples()


def test_a_name_that_no_dataset_can_have_is_refused_first(local: Place) -> None:
    from torchrelay.data.adopt.adoption import AdoptRequest, adopt_dataset

    with pytest.raises(DataError, match="is not a name for a dataset"):
        adopt_dataset(local.store, "a/b", AdoptRequest(url="/none"), progress=lambda *_: None)
