import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.data.build.test_dataset_build import read_documents
from torchrelay.core.errors import DataError
from torchrelay.data.build.dataset_build import BuildRequest, BuildResult, build_dataset
from torchrelay.data.build.input import JsonLines
from torchrelay.data.dataset import open_dataset
from torchrelay.store.base import Store
from torchrelay.store.files import FileStore
from torchrelay.store.open import open_store


def write(path: Path, records: list[Any]) -> str:
    lines = [record if isinstance(record, str) else json.dumps(record) for record in records]
    path.write_text("".join(f"{line}\n" for line in lines))
    return str(path)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Path:
    return tmp_path


def build(store: Store, folder: Path, source: JsonLines, **options: Any) -> BuildResult:
    chosen = {"shard_bytes": 1024, "validation": 0.3, "work": folder / "work", **options}
    request = BuildRequest(documents=source, **chosen)
    return build_dataset(store, "d", request, clock=lambda: 0.0, progress=lambda _: None)


def texts(store: Store) -> dict[str, list[str]]:
    dataset = open_dataset(store, "d")
    return {split: read_documents(dataset, split) for split in dataset.manifest.splits}


RECORDS = [{"t": f"text {number}", "i": number, "l": "ab"[number % 2]} for number in range(60)]


def test_a_dataset_may_have_no_validation(store: Store, folder: Path) -> None:
    source = JsonLines(patterns=[write(folder / "a", RECORDS)], field="t")
    assert list(build(store, folder, source, validation=0.0).manifest.splits) == ["train"]
    build(store, folder, source, validation=0.2, test=0.3)
    assert {split: len(found) > 3 for split, found in texts(store).items()} == {
        "train": True,
        "validation": True,
        "test": True,
    }


def test_an_own_id_keeps_a_changed_document_in_its_split(store: Store, folder: Path) -> None:
    path = folder / "a"
    source = JsonLines(patterns=[write(path, RECORDS)], field="t", id_field="i")
    build(store, folder, source)
    before = texts(store)
    write(path, [{**record, "t": f"new {record['t']}"} for record in RECORDS])
    build(store, folder, source)
    assert texts(store) == {split: [f"new {text}" for text in found] for split, found in before.items()}


def test_given_splits_are_obeyed(store: Store, folder: Path) -> None:
    words = ["train", "dev", "test", "train"]
    records = [{"t": f"text {number}", "s": words[number % 4]} for number in range(40)]
    source = JsonLines(patterns=[write(folder / "a", records)], field="t", split_field="s")
    result = build(store, folder, source, validation=0.9)
    assert texts(store) == {
        "train": [record["t"] for record in records if record["s"] == "train"],
        "validation": [record["t"] for record in records if record["s"] == "dev"],
        "test": [record["t"] for record in records if record["s"] == "test"],
    }
    assert "validation" not in result.manifest.build.arguments
    assert not (folder / "work").exists() or list((folder / "work").iterdir()) == []


@pytest.mark.parametrize("processes", [1, 2])
def test_a_document_in_two_given_splits_is_refused_with_both_places(
    tmp_path: Path, folder: Path, processes: int
) -> None:
    train = write(folder / "a", [{"t": f"text {number}" * 20} for number in range(60)])
    held = write(folder / "b", [{"t": "mine"}, {"t": "text 41" * 20}])
    source = JsonLines(patterns=[train], field="t", more={"validation": [held]})
    with pytest.raises(DataError) as caught:
        build(FileStore(tmp_path / "s"), folder, source, processes=processes, unit_bytes=1500)
    places = caught.value.message
    assert places.startswith("the same document is in two splits: ")
    assert f"{held}:2 (validation)" in places and "a at byte" in places and "(train)" in places
    with pytest.raises(DataError, match="there is no dataset"):
        open_dataset(FileStore(tmp_path / "s"), "d")


def test_a_document_in_validation_and_test_is_refused_too(store: Store, folder: Path) -> None:
    records = [{"t": "x", "s": "train"}, {"t": "y", "s": "val"}, {"t": "y", "s": "test"}]
    source = JsonLines(patterns=[write(folder / "a", records)], field="t", split_field="s")
    with pytest.raises(DataError, match=r"a:2 \(validation\) and .*a:3 \(test\)"):
        build(store, folder, source)


def test_given_splits_need_something_to_train_on(store: Store, folder: Path) -> None:
    source = JsonLines(patterns=[write(folder / "a", [{"t": "x", "s": "val"}])], field="t", split_field="s")
    with pytest.raises(DataError, match="the train split would be empty: 1 document") as caught:
        build(store, folder, source)
    assert "what the input gives" in caught.value.hint


def test_bad_documents_are_left_out_counted_and_listed(store: Store, folder: Path) -> None:
    records = [*RECORDS[:20], "{bad", {"t": 5, "l": "a"}, *RECORDS[20:], {"u": 1}]
    source = JsonLines(patterns=[write(folder / "a", records)], field="t", label_field="l")
    with pytest.raises(DataError, match="a:21: not valid JSON"):
        build(store, folder, source)
    result = build(store, folder, source, on_bad="skip")
    assert sum(map(len, texts(store).values())) == 60
    assert result.manifest.build.skipped == 3
    assert [problem.split(": ")[0] for problem in result.skipped] == [
        f"{folder}/a:{number}" for number in (21, 22, 63)
    ]
    assert result.skipped_list is not None
    listed = [json.loads(line)["problem"] for line in result.skipped_list.read_text().splitlines()]
    assert tuple(listed) == result.skipped
    good = write(folder / "a", RECORDS)
    clean = build(store, folder, JsonLines(patterns=[good], field="t", label_field="l"))
    assert clean.manifest.version == result.manifest.version and clean.skipped_list is None


def test_many_bad_documents_are_shown_in_part_and_listed_whole(store: Store, folder: Path) -> None:
    source = JsonLines(patterns=[write(folder / "a", [*["{"] * 50, *RECORDS])], field="t")
    result = build(store, folder, source, on_bad="skip", unit_bytes=40)
    assert (len(result.skipped), result.manifest.build.skipped) == (20, 50)
    assert result.skipped_list is not None
    assert len(result.skipped_list.read_text().splitlines()) == 50


def test_if_all_is_bad_that_is_said(store: Store, folder: Path) -> None:
    source = JsonLines(patterns=[write(folder / "a", ["{"] * 3)], field="t")
    with pytest.raises(DataError, match="0 documents, none with any text; 3 bad ones were left out"):
        build(store, folder, source, on_bad="skip")


def test_the_parent_is_the_newest_version_before(store: Store, folder: Path) -> None:
    source = JsonLines(patterns=[write(folder / "a", RECORDS)], field="t")
    first = build(store, folder, source).manifest
    assert first.build.parent is None
    again = build(store, folder, source)
    assert (again.manifest.build.parent, again.healed, again.is_new) == (None, 0, False)
    second = build(store, folder, source, validation=0.2).manifest
    assert second.build.parent == first.version
    assert build(store, folder, source, validation=0.2).manifest.build.parent == first.version


def test_shards_that_were_lost_or_cut_off_are_written_anew_and_counted(tmp_path: Path, folder: Path) -> None:
    records = [{"t": f"text {number} " * 20} for number in range(60)]
    source = JsonLines(patterns=[write(folder / "a", records)], field="t")
    store = FileStore(tmp_path / "s")
    made = build(store, folder, source)
    keys = [f"datasets/d/{entry.key}" for entry in made.manifest.splits["train"]][:2]
    whole = [store.get(key) for key in keys]
    store.delete(keys[0])
    store.put(keys[1], whole[1][:-5])
    assert build(store, folder, source).healed == 2
    assert [store.get(key) for key in keys] == whole


def test_a_stop_at_bad_input_tells_how_to_leave_it_out(store: Store, folder: Path) -> None:
    for line in ("{bad", '{"t": null}', '{"u": 1}'):
        source = JsonLines(patterns=[write(folder / "a", [line])], field="t")
        with pytest.raises(DataError) as caught:
            build(store, folder, source)
        assert "--on-bad skip" in caught.value.hint


@pytest.mark.parametrize("processes", [1, 3])
def test_labels_and_characters_do_not_depend_on_processes(
    tmp_path: Path, folder: Path, processes: int
) -> None:
    source = JsonLines(patterns=[write(folder / "a", RECORDS)], field="t", label_field="l")
    store = FileStore(tmp_path / str(processes))
    made = build(store, folder, source, tokenizer="chars", processes=processes, unit_bytes=300).manifest
    alone = build(
        open_store(f"memory://job-{processes}"), folder, source, tokenizer="chars", unit_bytes=10**6
    )
    assert made.version == alone.manifest.version
    assert made.content.label_names == ("a", "b")


@given(
    first=st.sets(st.integers(0, 10_000), min_size=5, max_size=40),
    added=st.sets(st.integers(0, 10_000), max_size=40),
    share=st.floats(0.1, 0.5),
)
@settings(max_examples=25, deadline=None)
def test_a_later_build_with_the_same_share_keeps_validation_in_validation(
    tmp_path_factory: pytest.TempPathFactory, first: set[int], added: set[int], share: float
) -> None:
    folder = tmp_path_factory.mktemp("later")
    store = FileStore(folder / "s")
    found = []
    for numbers in (first, first | added):
        source = JsonLines(
            patterns=[write(folder / "a", [{"t": f"text {number}"} for number in numbers])], field="t"
        )
        try:
            build(store, folder, source, validation=share)
        except DataError as error:
            assert "split would be empty" in error.message
            return
        found.append({split: set(read) for split, read in texts(store).items()})
    before, after = found
    assert before["validation"] <= after["validation"] and before["train"] <= after["train"]
    assert not after["validation"] & after["train"]
