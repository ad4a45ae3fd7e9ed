import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest
import zstandard

from torchrelay.core.errors import DataError
from torchrelay.data.build.division import Division
from torchrelay.data.build.document import Fields, Intake
from torchrelay.data.build.input import (
    HuggingFaceFolder,
    JsonLines,
    TextFiles,
    arrow_files,
    json_lines,
    match_files,
    parquet_files,
)
from torchrelay.data.build.unit import Input

Read = Callable[..., list[tuple[str, str, str]]]
TEXT = Fields(text="t")


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Text, split and place of every document."""

    def read_all(
        source: Input, unit_bytes: int = 10**9, intake: Intake | None = None
    ) -> list[tuple[str, str, str]]:
        division = Division(validation=0.0, is_text=True)
        intake = intake or Intake(on_bad="stop", scratch=tmp_path)
        return [
            (str(piece.text), piece.split, piece.document.where)
            for unit in source.units(division, unit_bytes)
            for piece in unit.prepared().pieces(division, intake)
        ]

    return read_all


def texts(found: list[tuple[str, str, str]]) -> list[str]:
    return [text for text, _, _ in found]


def lines(path: Path, *records: object) -> str:
    path.write_bytes(
        b"".join((r if isinstance(r, bytes) else json.dumps(r).encode()) + b"\n" for r in records)
    )
    return str(path)


def test_each_file_is_a_document_sorted_by_path_and_read_once(tmp_path: Path, read: Read) -> None:
    for name in ("b.txt", "a.txt", "sub/c.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    found = TextFiles(
        [f"{tmp_path}/b.txt", f"{tmp_path}/**/*.txt", f"{tmp_path}/sub/../a.txt", f"{tmp_path}/a.txt"]
    )
    for unit_bytes in (1, 12, 10**9):
        assert texts(read(found, unit_bytes)) == ["a.txt", "b.txt", "sub/c.txt"]
    assert found.total_bytes() == 19
    assert found.describe()["text"][0] == f"{tmp_path}/b.txt"


def test_a_pattern_without_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    with pytest.raises(DataError, match=r"no file matches '.*nothing\*'"):
        match_files([f"{tmp_path}/a.txt", f"{tmp_path}/nothing*"])


def test_a_folder_is_answered_with_the_pattern_for_its_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no file matches") as caught:
        match_files([str(tmp_path)])
    assert f"'{tmp_path}/*'" in caught.value.hint


def test_a_file_that_changes_while_it_is_read_is_named(tmp_path: Path, read: Read) -> None:
    (tmp_path / "a").write_text("one")
    source = TextFiles([f"{tmp_path}/a"])
    (unit,) = source.units(Division(), 100)
    (tmp_path / "a").write_text("longer")
    with pytest.raises(DataError, match=r"a changed while it was read: it had 3 bytes, now 6"):
        list(unit.pieces(Division(), Intake(on_bad="stop", scratch=tmp_path)))


def test_the_fingerprint_changes_with_a_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one")
    source = TextFiles([f"{tmp_path}/a"])
    before = source.fingerprint()
    assert source.fingerprint() == before
    (tmp_path / "a").write_text("longer")
    assert source.fingerprint() != before


def test_each_line_is_a_document_with_its_label(tmp_path: Path) -> None:
    path = lines(
        tmp_path / "a.jsonl", {"t": "é", "l": 2}, b"", b"   ", {"t": "x\ny", "l": 2}, {"t": "z", "l": "w"}
    )
    source = JsonLines(patterns=[path], field="t", label_field="l")
    division, intake = Division(is_text=True), Intake(on_bad="stop", scratch=tmp_path)
    found = [piece for unit in source.units(division, 100) for piece in unit.pieces(division, intake)]
    assert [(piece.text, piece.document.label, piece.document.where) for piece in found] == [
        ("é", 2, f"{path}:1"),
        ("x\ny", 2, f"{path}:4"),
        ("z", "w", f"{path}:5"),
    ]
    assert source.labelled and not JsonLines(patterns=[path], field="t").labelled
    assert source.describe() == {"jsonl": [path], "field": "t", "label_field": "l"}


@pytest.mark.parametrize("unit_bytes", [1, 7, 20, 21, 64])
def test_lines_are_read_once_wherever_a_file_is_cut(tmp_path: Path, read: Read, unit_bytes: int) -> None:
    path = lines(tmp_path / "a", *({"t": "x" * (number % 23)} for number in range(1, 40)), b"", {"t": "end"})
    source = JsonLines(patterns=[path], field="t")
    assert texts(read(source, unit_bytes)) == texts(read(source))
    assert len(read(source)) == 39


def test_a_bad_line_far_into_a_cut_file_is_named_by_its_number(tmp_path: Path, read: Read) -> None:
    path = lines(tmp_path / "a", *({"t": f"line {number}"} for number in range(1, 51)), {"u": 1})
    with pytest.raises(DataError, match="a:51: there is no field 't'"):
        read(JsonLines(patterns=[path], field="t"), 100)


def test_a_byte_order_mark_and_a_missing_last_newline_do_not_matter(tmp_path: Path, read: Read) -> None:
    (tmp_path / "a").write_bytes(b'\xef\xbb\xbf{"t": "one"}\n{"t": "two"}')
    assert texts(read(JsonLines(patterns=[f"{tmp_path}/a"], field="t"))) == ["one", "two"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"t": "a"', "a.jsonl:2: not valid JSON"),
        (b'{"t": "\xff"}', r"a.jsonl:2: not valid UTF-8 at byte 23"),
        (b"[1, 2]", r"a.jsonl:2: \[1, 2\] is not a JSON object"),
        (b'{"l": 1}', "a.jsonl:2: there is no field 't'"),
        (b'{"t": 5, "l": 1}', "a.jsonl:2: field 't' is 5, not a text"),
        (b'{"t": null, "l": 1}', "a.jsonl:2: field 't' is null, not a text"),
        (b'{"t": "a"}', "a.jsonl:2: there is no field 'l'"),
        (b'{"t": "a", "l": 1.5}', "a.jsonl:2: label field 'l' is 1.5, not a whole number or text"),
        (b'{"t": "a", "l": true}', "a.jsonl:2: label field 'l' is true, not a whole number or text"),
        (b'{"t": "a\\ud800", "l": 1}', "a.jsonl:2: field 't' holds half of a surrogate pair at character 1"),
        (b'{"t": "a", "l": 1, "s": "trian"}', "a.jsonl:2: 'trian' is not a split"),
        (b'{"t": "a", "l": 1, "s": "val", "i": []}', r"a.jsonl:2: id field 'i' is \[\], not a whole number"),
        (b"[" * 100_000, "a.jsonl:2: not valid JSON"),
    ],
)
def test_a_bad_line_is_named_with_what_is_wrong(
    tmp_path: Path, read: Read, line: bytes, message: str
) -> None:
    path = lines(tmp_path / "a.jsonl", b'{"t":"a","l":0}', line, {"t": "b", "l": 1})
    fields = Fields(
        text="t", label="l", split="s" if b'"s"' in line else None, id="i" if b'"i"' in line else None
    )
    if fields.split:
        path = lines(tmp_path / "a.jsonl", b'{"t":"", "l":0, "s":"dev", "i": 1}', line)
    with pytest.raises(DataError, match=message):
        read(json_lines([path], fields))
    intake = Intake(on_bad="skip", scratch=tmp_path)
    read(json_lines([path], fields), intake=intake)
    assert len(intake.problems) == 1 and intake.documents == (1 if fields.split else 2)


def test_a_missing_field_is_answered_with_those_there(tmp_path: Path, read: Read) -> None:
    path = lines(tmp_path / "a.jsonl", {"body": "x", "id": 1})
    with pytest.raises(DataError) as caught:
        read(JsonLines(patterns=[path], field="text"))
    assert caught.value.hint == "fields there: body, id; or leave out what is bad with --on-bad skip"


def test_a_file_that_may_not_be_read_is_named(
    tmp_path: Path, read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.txt").write_text("a")

    def refuse(self: Path, mode: str) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(DataError, match=r"cannot read .*a\.txt: Permission denied"):
        read(TextFiles([f"{tmp_path}/a.txt"]))


def compress(path: Path, data: bytes) -> str:
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(data[:10]) + gzip.compress(data[10:]))
    else:
        pack = zstandard.ZstdCompressor().compress
        path.write_bytes(pack(data[:10]) + pack(data[10:]))
    return str(path)


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_compressed_files_of_several_frames_are_read_as_one(tmp_path: Path, read: Read, suffix: str) -> None:
    content = b'{"t": "one"}\n' * 3000 + b'{"t": "\xc3\xa9"}\n'
    path = compress(tmp_path / f"a.jsonl{suffix}", content)
    assert texts(read(JsonLines(patterns=[path], field="t"), 100)) == ["one"] * 3000 + ["é"]
    assert texts(read(TextFiles([path]), 100)) == [content.decode()]


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_a_compressed_file_that_is_cut_off_is_named(tmp_path: Path, read: Read, suffix: str) -> None:
    path = Path(compress(tmp_path / f"a{suffix}", b'{"t": "one"}\n' * 3000))
    path.write_bytes(path.read_bytes()[:-9])
    for source in (JsonLines(patterns=[str(path)], field="t"), TextFiles([str(path)])):
        with pytest.raises(DataError, match=rf"a{suffix} is damaged or cut off"):
            read(source)
        intake = Intake(on_bad="skip", scratch=tmp_path)
        read(source, intake=intake)
        assert len(intake.problems) == 1
    path.write_bytes(b"not compressed at all")
    with pytest.raises(DataError, match="is damaged or cut off"):
        read(TextFiles([str(path)]))


def test_files_for_validation_and_test_are_given(tmp_path: Path, read: Read) -> None:
    paths = [lines(tmp_path / name, {"t": name}) for name in "abc"]
    more = {"validation": [paths[1]], "test": [paths[2]]}
    source = json_lines([paths[0]], TEXT, more)
    assert [(text, split) for text, split, _ in read(source)] == [
        ("a", "train"),
        ("b", "validation"),
        ("c", "test"),
    ]
    assert source.given and source.describe()["validation_from"] == [paths[1]]
    assert [split for _, split, _ in read(TextFiles([paths[0]], more))] == ["train", "validation", "test"]


@pytest.mark.parametrize("word", ["valid", "val", "dev", "eval", "Validation"])
def test_a_field_may_say_the_split_in_the_words_people_use(tmp_path: Path, read: Read, word: str) -> None:
    path = lines(tmp_path / "a", {"t": "x", "s": word}, {"t": "y", "s": "train"})
    source = JsonLines(patterns=[path], field="t", split_field="s")
    assert [split for _, split, _ in read(source)] == ["validation", "train"]
    assert source.given


def write_parquet(path: Path, columns: dict[str, Any], group: int = 10) -> str:
    pq.write_table(pa.table(columns), path, row_group_size=group)
    return str(path)


def test_every_row_of_a_parquet_file_is_a_document_in_units_of_row_groups(tmp_path: Path, read: Read) -> None:
    words = [f"text {number}" for number in range(95)]
    path = write_parquet(tmp_path / "a.parquet", {"t": words, "n": list(range(95))})
    source = parquet_files([path], TEXT)
    for unit_bytes in (1, 250, 10**9):
        assert texts(read(source, unit_bytes)) == words
    assert len(list(source.units(Division(), 1))) == 10
    assert read(source, 1)[41][2] == f"{path}: row 42"
    assert sum(unit.size for unit in source.units(Division(), 1)) == pytest.approx(
        Path(path).stat().st_size, abs=10
    )


@pytest.mark.parametrize("make", [parquet_files, arrow_files])
def test_a_file_with_another_schema_in_the_middle_is_named(
    tmp_path: Path, read: Read, make: Callable[..., Input]
) -> None:
    write = write_parquet if make is parquet_files else write_arrow
    write(tmp_path / "a", {"t": ["one"]})
    write(tmp_path / "b", {"t": [5], "u": ["x"]})
    write(tmp_path / "c", {"u": ["x"]})
    write(tmp_path / "d", {"t": ["two", None, "three"]})
    with pytest.raises(DataError, match="b: column 't' holds int64, not text"):
        read(make([f"{tmp_path}/*"], TEXT))
    intake = Intake(on_bad="skip", scratch=tmp_path)
    assert texts(read(make([f"{tmp_path}/*"], TEXT), intake=intake)) == ["one", "two", "three"]
    assert [problem.removeprefix(f"{tmp_path}/") for problem in intake.problems[:2]] == [
        "b: column 't' holds int64, not text",
        "c: there is no column 't'",
    ]
    assert "row 2: field 't' is null, not a text" in intake.problems[2]


def test_a_damaged_table_is_named(tmp_path: Path, read: Read) -> None:
    for make, name in ((parquet_files, "a"), (arrow_files, "b")):
        path = tmp_path / name
        (write_parquet if make is parquet_files else write_arrow)(path, {"t": ["x" * 100] * 50})
        path.write_bytes(path.read_bytes()[:-40])
        with pytest.raises(DataError, match=f"cannot read {path}"):
            read(make([str(path)], TEXT))
        path.write_bytes(b"nothing of the kind")
        with pytest.raises(DataError, match=f"cannot read {path}"):
            read(make([str(path)], TEXT))


def write_arrow(path: Path, columns: dict[str, Any], rows: int = 10, *, stream: bool = False) -> str:
    table = pa.table(columns)
    make = pa.ipc.new_stream if stream else pa.ipc.new_file
    with make(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=rows)
    return str(path)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("encoded", [True, False])
def test_every_row_of_an_arrow_file_is_a_document_in_units_of_record_batches(
    tmp_path: Path, read: Read, stream: bool, encoded: bool
) -> None:
    words = [f"text {number % 7}" for number in range(95)]
    column = pa.array(words).dictionary_encode() if encoded else words
    path = write_arrow(tmp_path / "a.arrow", {"t": column}, stream=stream)
    source = arrow_files([path], TEXT)
    for unit_bytes in (1, 1000, 10**9):
        assert texts(read(source, unit_bytes)) == words
    assert len(list(source.units(Division(), 1))) == (1 if stream and encoded else 10)
    assert read(source, 1)[41][2] == f"{path}: record batch 4, row 2"


def test_large_strings_and_binary_columns_are_text(tmp_path: Path, read: Read) -> None:
    for kind in (pa.large_string(), pa.binary(), pa.string_view()):
        path = write_arrow(tmp_path / "a", {"t": pa.array(["é"]).cast(kind)})
        assert texts(read(arrow_files([path], TEXT))) == ["é"]


def test_a_saved_dataset_is_read_in_its_order(tmp_path: Path, read: Read) -> None:
    words = [f"text {number}" for number in range(2500)]
    datasets.Dataset.from_dict({"t": words}).save_to_disk(str(tmp_path / "d"), num_shards=2)
    source = HuggingFaceFolder(str(tmp_path / "d"), TEXT)
    assert texts(read(source)) == texts(read(source, 1)) == words
    assert not source.given
    assert source.total_bytes() > 0 and source.describe() == {"hf": str(tmp_path / "d"), "field": "t"}


def test_the_splits_of_a_saved_dict_are_given(tmp_path: Path, read: Read) -> None:
    made = {name: datasets.Dataset.from_dict({"t": [name] * 3}) for name in ("train", "validation", "test")}
    datasets.DatasetDict(made).save_to_disk(str(tmp_path / "d"))
    source = HuggingFaceFolder(str(tmp_path / "d"), TEXT)
    assert source.given
    assert [(text, split) for text, split, _ in read(source)] == [
        (name, name) for name in made for _ in range(3)
    ]
    datasets.DatasetDict({"train": made["train"]}).save_to_disk(str(tmp_path / "e"))
    assert not HuggingFaceFolder(str(tmp_path / "e"), TEXT).given


def test_what_is_no_saved_dataset_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot read .*state.json"):
        HuggingFaceFolder(str(tmp_path), TEXT).fingerprint()
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["unsupervised"]}')
    with pytest.raises(DataError, match="'unsupervised' is not a split"):
        HuggingFaceFolder(str(tmp_path), TEXT).fingerprint()


def test_a_selection_of_rows_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text('{"_data_files": [], "_indices_data_files": [{"filename": "i"}]}')
    with pytest.raises(DataError, match="is a selection of the rows in its files") as caught:
        HuggingFaceFolder(str(tmp_path), TEXT).fingerprint()
    assert "flatten_indices" in caught.value.hint
