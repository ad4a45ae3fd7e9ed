import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.data.token_shards import read_shard
from torchrelay.core.errors import DataError
from torchrelay.data.build import division as division_module
from torchrelay.data.build import token_maker as token_maker_module
from torchrelay.data.build.dataset_build import BuildRequest, BuildResult, build_dataset
from torchrelay.data.build.input import Input, JsonLines, TextFiles
from torchrelay.data.build.merge import Status
from torchrelay.data.dataset import Dataset, list_refs, open_dataset
from torchrelay.data.tokenizer import load_tokenizer
from torchrelay.store.base import Store
from torchrelay.store.files import FileStore

Build = Callable[..., BuildResult]


def read_documents(dataset: Dataset, split: str) -> list[str]:
    """The text of every document of a split, through its tokenizer."""
    manifest = dataset.manifest
    tokenizer = load_tokenizer(dataset.store, manifest)
    texts = []
    for entry in manifest.splits[split]:
        shard = read_shard(dataset.store, entry, dataset.folder, manifest.token_dtype)
        starts = [0, *shard.ends.tolist()]
        for start, end in zip(starts, shard.ends.tolist(), strict=False):
            assert int(shard.tokens[end - 1]) == tokenizer.end_token
            texts.append(tokenizer.decode(shard.tokens[start:end]))
    return texts


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where work folders are made."""
    monkeypatch.setenv("TORCHRELAY_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def build_input(store: Store, source: Input, **options: Any) -> BuildResult:
    settings = {"shard_bytes": 1024, "validation": 0.3, **options}
    request = BuildRequest(documents=source, **settings)
    return build_dataset(store, "d", request, clock=lambda: 0.0, progress=lambda *_: None)


def write_lines(path: Path, records: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


@pytest.mark.parametrize("tokenizer", ["bytes", "chars"])
def test_every_document_is_in_exactly_one_split_in_the_order_of_its_path(
    store: Store, build: Build, stories: list[str], tokenizer: str
) -> None:
    build(stories, tokenizer=tokenizer)
    dataset = open_dataset(store, "d")
    train, validation = read_documents(dataset, "train"), read_documents(dataset, "validation")
    assert sorted(train + validation) == sorted(stories)
    assert 3 <= len(validation) <= 24
    assert train == [text for text in stories if text in set(train)]
    totals = dataset.manifest.totals("train")
    assert totals.samples == len(train)
    assert totals.text_bytes == sum(len(text.encode()) for text in train)
    assert totals.tokens == sum(len(text) + 1 for text in train)
    assert totals.longest == max(map(len, train)) + 1
    assert len(dataset.manifest.splits["train"]) > 3


def test_the_same_input_gives_the_same_version_and_no_new_ref(
    store: Store, build: Build, stories: list[str]
) -> None:
    first, second = build(stories), build(stories)
    assert first.manifest.version == second.manifest.version
    assert (first.ref, first.is_new) == (1, True)
    assert (second.ref, second.is_new) == (1, False)
    assert list_refs(store, "d") == [1]


def test_the_version_does_not_depend_on_place_or_name(
    tmp_path: Path, build: Build, stories: list[str]
) -> None:
    here = build(stories, name="a")
    there = build(stories, name="b", into=FileStore(tmp_path / "store"))
    assert here.manifest.version == there.manifest.version


def test_the_version_of_a_text_stays_what_it_is(build: Build) -> None:
    """Pinned: rebuilding an old input must give the version that runs are pinned to."""
    texts = [f"line {number}\n" * (number % 7 + 1) for number in range(50)]
    assert build(texts).manifest.version == "ed77401f6bb000edc9901977770cae7b26440f9c73aa83fe61c37150bdce0c1d"


def test_a_later_version_with_more_documents_keeps_its_validation_documents(
    store: Store, build: Build, stories: list[str]
) -> None:
    build(stories[:25])
    before = {split: read_documents(open_dataset(store, "d"), split) for split in ("train", "validation")}
    result = build(stories)
    assert result.ref == 2
    after = {split: read_documents(open_dataset(store, "d"), split) for split in ("train", "validation")}
    assert set(before["validation"]) < set(after["validation"])
    assert set(before["train"]) < set(after["train"])
    assert read_documents(open_dataset(store, "d@1"), "validation") == before["validation"]


def test_a_duplicate_is_never_on_both_sides(store: Store, build: Build, stories: list[str]) -> None:
    build(stories + stories)
    dataset = open_dataset(store, "d")
    train, validation = read_documents(dataset, "train"), read_documents(dataset, "validation")
    assert len(train) + len(validation) == 80
    assert not set(train) & set(validation)


def test_the_tail_of_one_file_is_for_validation(store: Store, build: Build) -> None:
    text = "".join(f"{number} é\n" for number in range(500))
    build([text], split="tail", validation=0.1, tokenizer="chars")
    dataset = open_dataset(store, "d")
    train, validation = read_documents(dataset, "train"), read_documents(dataset, "validation")
    joined = "".join(train) + "".join(validation)
    assert text.endswith(validation[-1])
    assert abs(len("".join(validation).encode()) / len(text.encode()) - 0.1) < 0.01
    assert len(joined) <= len(text)


def test_a_document_larger_than_a_shard_goes_on_in_the_next(store: Store, build: Build) -> None:
    build(["x" * 3000], split="tail")
    entries = open_dataset(store, "d").manifest.splits["train"]
    assert [entry.continues for entry in entries] == [False] + [True] * (len(entries) - 1)
    assert sum(entry.samples for entry in entries) == 1
    assert all(entry.tokens <= 512 for entry in entries)
    assert entries[-1].longest == 2101


@pytest.mark.parametrize("tokenizer", ["bytes", "chars"])
def test_tokenizing_in_parts_changes_nothing(
    build: Build, monkeypatch: pytest.MonkeyPatch, tokenizer: str
) -> None:
    texts = ["grüße\n" * 100, "🙂 ohne Zeile " * 30, *(f"text {n}" for n in range(20))]
    whole = build(texts, tokenizer=tokenizer).manifest
    monkeypatch.setattr(division_module, "PART_BYTES", 16)
    monkeypatch.setattr(token_maker_module, "_BATCH_BYTES", 40)
    parts = build(texts, tokenizer=tokenizer).manifest
    keys = [[e.key for e in made.splits["train"]] for made in (whole, parts)]
    assert keys[0] == keys[1]


def test_any_bytes_are_a_document_for_the_bytes_tokenizer(store: Store, build: Build) -> None:
    build([bytes([n, 255, 0]) for n in range(40)])
    assert open_dataset(store, "d").manifest.totals("train").tokens % 4 == 0


def test_labels_are_numbered_in_the_order_of_their_names(store: Store, tmp_path: Path) -> None:
    names = ["sport", "art", "news"]
    records = [{"text": f"text {n}", "label": names[n % 3]} for n in range(40)]
    source = JsonLines(patterns=[write_lines(tmp_path / "a", records)], field="text", label_field="label")
    manifest = build_input(store, source).manifest
    assert manifest.content.label_names == ("art", "news", "sport")
    assert manifest.num_labels == 3
    dataset = open_dataset(store, "d")
    shards = [read_shard(store, entry, dataset.folder) for entry in manifest.splits["train"]]
    labels = [label for shard in shards for label in shard.labels]
    expected = {record["text"]: manifest.content.label_names.index(record["label"]) for record in records}
    assert [int(label) for label in labels] == [expected[text] for text in read_documents(dataset, "train")]


def test_number_labels_are_ordered_as_numbers(store: Store, tmp_path: Path) -> None:
    records = [{"text": f"text {n}", "stars": (10, 9, 2)[n % 3]} for n in range(40)]
    source = JsonLines(patterns=[write_lines(tmp_path / "a", records)], field="text", label_field="stars")
    assert build_input(store, source).manifest.content.label_names == ("2", "9", "10")


def test_empty_documents_are_left_out_and_counted(store: Store, build: Build, stories: list[str]) -> None:
    result = build([*stories, "", ""])
    assert result.empty_documents == 2
    assert sum(result.manifest.totals(split).samples for split in ("train", "validation")) == 40


def test_the_build_record_says_what_was_asked_for(store: Store, build: Build, stories: list[str]) -> None:
    record = build(stories, tokenizer="chars").manifest.build
    assert record.created == "1970-01-01T00:00:00.000Z"
    assert {k: record.arguments[k] for k in ("tokenizer", "validation", "split", "shard_bytes")} == {
        "tokenizer": "chars",
        "validation": 0.3,
        "split": "document",
        "shard_bytes": 1024,
    }
    assert record.arguments["text"][0].endswith("/*.txt")


def test_progress_reaches_the_end_of_every_pass(store: Store, tmp_path: Path) -> None:
    records = [{"t": f"é{n}" * 20} for n in range(30)]
    path = write_lines(tmp_path / "a", records)
    seen: list[Status] = []
    request = BuildRequest(
        documents=JsonLines(patterns=[path], field="t"),
        tokenizer="chars",
        validation=0.3,
        shard_bytes=1024,
        unit_bytes=400,
    )
    result = build_dataset(store, "d", request, progress=seen.append)
    size = Path(path).stat().st_size
    assert Status("reading", size, size) in seen
    tokens = sum(result.manifest.totals(split).tokens for split in ("train", "validation"))
    shards = sum(map(len, result.manifest.splits.values()))
    assert seen[-1] == Status("tokenizing", size, size, 30, tokens, shards)
    for phase in ("reading", "tokenizing"):
        done = [status.done for status in seen if status.phase == phase]
        assert len(done) > 2 and done == sorted(done)


BAD = {
    "bad UTF-8": ([b"a", b"\xc3\xa9 \xff"], {"tokenizer": "chars"}, "0001.txt is not valid UTF-8 at byte 3"),
    "empty corpus": (["", ""], {}, "the corpus is empty: 2 documents, none with any text"),
    "one document": (["only one"], {}, "the .* split would be empty: 1 document, 30% for validation"),
    "tail too short": (["x"], {"split": "tail"}, "the train split would be empty"),
    "all for validation": (["a", "b"], {"validation": 1.0}, "leave nothing for training"),
    "tiny shards": (["a", "b"], {"shard_bytes": 10}, "a shard of 10 bytes is out of range"),
    "end mark of bytes": (["a", "b"], {"end_token": "x"}, "has an end mark of its own"),
    "no tokenizer file": (["a", "b"], {"tokenizer": "nowhere.json"}, "cannot read the tokenizer nowhere"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_named_and_leaves_no_version(store: Store, build: Build, case: str) -> None:
    texts, options, message = BAD[case]
    with pytest.raises(DataError, match=message):
        build(texts, **options)
    assert [entry.key for entry in store.list("datasets")] == []


def test_an_empty_split_is_answered_with_the_other_rule(build: Build) -> None:
    with pytest.raises(DataError) as caught:
        build(["only one"])
    assert "use --split tail" in caught.value.hint
    with pytest.raises(DataError) as caught:
        build(["x"], split="tail")
    assert "use --split document" in caught.value.hint


def test_bad_utf8_far_into_a_document_is_found_at_its_byte(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(division_module, "PART_BYTES", 64)
    text = b"line\n" * 100 + b"\xff" + b"line\n" * 100
    with pytest.raises(DataError, match="not valid UTF-8 at byte 500"):
        build([text], split="tail", validation=0.9, tokenizer="chars")


def test_an_error_after_the_first_shards_leaves_no_manifest_and_no_ref(store: Store, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a", [{"text": f"{n}" * 200} for n in range(50)])
    with Path(path).open("a") as file:
        file.write('{"text": 5}\n')
    with pytest.raises(DataError, match="a:51: field 'text' is 5"):
        build_input(store, JsonLines(patterns=[path], field="text"), unit_bytes=2000)
    keys = [entry.key for entry in store.list("datasets")]
    assert keys and all("/shards/" in key for key in keys)
    with pytest.raises(DataError, match="there is no dataset 'd'"):
        open_dataset(store, "d")


def test_labels_of_two_types_are_refused_with_both_places(store: Store, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a", [{"t": "a", "l": 1}, {"t": "b", "l": "one"}])
    source = JsonLines(patterns=[path], field="t", label_field="l")
    with pytest.raises(DataError, match=r"labels are of two types: 'one' at .*a:2, 1 at .*a:1"):
        build_input(store, source)


def test_labelled_documents_are_not_cut_in_two(store: Store, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a", [{"t": "a", "l": 1}])
    source = JsonLines(patterns=[path], field="t", label_field="l")
    with pytest.raises(DataError, match="would put the same labelled document into both splits"):
        build_input(store, source, split="tail")
    with pytest.raises(DataError, match="split would be empty") as caught:
        build_input(store, source)
    assert "tail" not in caught.value.hint


def test_a_pattern_without_files_leaves_nothing(store: Store, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no file matches"):
        build_input(store, TextFiles([f"{tmp_path}/*.txt"]))
    assert list(store.list("datasets")) == []
