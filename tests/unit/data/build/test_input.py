import json
from pathlib import Path
from typing import Any

import pytest

from torchrelay.core.errors import DataError
from torchrelay.data.build.input import JsonLines, TextFiles, match_files


def texts(source: Any) -> list[bytes]:
    return [bytes(document.text) for document in source.documents()]


def lines(path: Path, *records: object) -> str:
    path.write_bytes(
        b"".join((r if isinstance(r, bytes) else json.dumps(r).encode()) + b"\n" for r in records)
    )
    return str(path)


def test_each_file_is_a_document_sorted_by_path_and_read_once(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", "sub/c.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    found = TextFiles(
        [f"{tmp_path}/b.txt", f"{tmp_path}/**/*.txt", f"{tmp_path}/sub/../a.txt", f"{tmp_path}/a.txt"]
    )
    assert texts(found) == [b"a.txt", b"b.txt", b"sub/c.txt"]
    assert found.total_bytes() == 19
    assert found.describe()["text"][0] == f"{tmp_path}/b.txt"


def test_an_empty_file_is_an_empty_document(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"")
    assert texts(TextFiles([f"{tmp_path}/a"])) == [b""]


def test_a_pattern_without_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    with pytest.raises(DataError, match=r"no file matches '.*nothing\*'"):
        match_files([f"{tmp_path}/a.txt", f"{tmp_path}/nothing*"])


def test_a_folder_is_answered_with_the_pattern_for_its_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no file matches") as caught:
        match_files([str(tmp_path)])
    assert f"'{tmp_path}/*'" in caught.value.hint


def test_each_line_is_a_document_with_its_label(tmp_path: Path) -> None:
    path = lines(
        tmp_path / "a.jsonl", {"t": "é", "l": 2}, b"", b"   ", {"t": "", "l": 1}, {"t": "x\ny", "l": 2}
    )
    source = JsonLines(patterns=[path], field="t", label_field="l")
    found = list(source.documents())
    assert [(bytes(d.text).decode(), d.label, d.where) for d in found] == [
        ("é", 2, f"{path}:1"),
        ("", 1, f"{path}:4"),
        ("x\ny", 2, f"{path}:5"),
    ]
    assert source.labelled and not JsonLines(patterns=[path], field="t").labelled
    assert source.describe() == {"jsonl": [path], "field": "t", "label_field": "l"}


def test_a_byte_order_mark_and_a_missing_last_newline_do_not_matter(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b'\xef\xbb\xbf{"t": "one"}\n{"t": "two"}')
    assert texts(JsonLines(patterns=[f"{tmp_path}/a"], field="t")) == [b"one", b"two"]


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
    ],
)
def test_a_bad_line_is_named_with_what_is_wrong(tmp_path: Path, line: bytes, message: str) -> None:
    path = lines(tmp_path / "a.jsonl", b'{"t":"a","l":0}', line)
    with pytest.raises(DataError, match=message):
        list(JsonLines(patterns=[path], field="t", label_field="l").documents())


def test_a_missing_field_is_answered_with_those_there(tmp_path: Path) -> None:
    path = lines(tmp_path / "a.jsonl", {"body": "x", "id": 1})
    with pytest.raises(DataError) as caught:
        list(JsonLines(patterns=[path], field="text").documents())
    assert caught.value.hint == "fields there: body, id"


def test_a_file_that_may_not_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("a")

    def refuse(self: Path, mode: str) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(DataError, match=r"cannot read .*a\.txt: Permission denied"):
        texts(TextFiles([f"{tmp_path}/a.txt"]))
