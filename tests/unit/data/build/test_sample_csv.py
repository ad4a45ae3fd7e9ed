import csv
import gzip
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.data.build.sample_support import bad, build, good
from torchrelay.core.errors import DataError
from torchrelay.data.build import sample_csv
from torchrelay.data.build.sample_csv import CsvFiles


def write(folder: Path, text: str | bytes, name: str = "a.csv") -> CsvFiles:
    (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return CsvFiles(patterns=[str(folder / "*.csv*")])


def test_types_are_found_over_all_rows(tmp_path: Path) -> None:
    source = write(tmp_path, "n,x,word,code\n1,1,a,007\n-2,2.5,,8\n3,1e3,c,9\n")
    built = build(source)
    assert built.columns == {
        "code": ("str", None), "n": ("int64", ()), "word": ("str", None), "x": ("float64", ())
    }  # fmt: skip
    assert built.samples[1] == {"code": "8", "n": -2, "word": "", "x": 2.5}


@pytest.mark.parametrize(("field", "dtype"), [
    ("0", "int64"), ("-5", "int64"), ("999999999999999999", "int64"), ("9" * 30, "str"),
    ("01", "str"), ("01.5", "str"), ("1e3", "float64"), ("2.", "float64"), ("+0.5E-7", "float64"),
    ("nan", "float64"), ("-Inf", "float64"), (".5", "float64"), ("1_000", "str"), (" 1", "str"),
    ("true", "str"),     ("0x1", "str"), ("1,5", "str"), ("-", "str"), ("", "str"),
])  # fmt: skip
def test_what_counts_as_a_number(tmp_path: Path, field: str, dtype: str) -> None:
    built = build(write(tmp_path, f'a,b\n"{field}",x\n'))
    assert built.columns["a"][0] == dtype


def test_types_can_be_declared(tmp_path: Path) -> None:
    source = write(tmp_path, "n,x\n1,2\n3,4\n")
    built = build(source, types={"n": "str", "x": "float32"})
    assert built.columns == {"n": ("str", None), "x": ("float32", ())}
    assert built.samples[1] == {"n": "3", "x": 4.0}


def test_a_text_in_a_column_of_declared_numbers_is_named(tmp_path: Path) -> None:
    source = write(tmp_path, "n\n1\nx\n3\n")
    with pytest.raises(DataError, match=r"a.csv:3: column 'n': .*'x'"):
        build(source, types={"n": "int64"})
    assert len(build(source, types={"n": "int64"}, on_bad="skip").samples) == 2


def test_an_empty_field_among_numbers_is_named(tmp_path: Path) -> None:
    source = write(tmp_path, "n,m\n1,1\n,2\n3,3\n")
    with pytest.raises(DataError, match=r"a.csv:3: the column 'n' is empty here") as caught:
        build(source)
    assert "--column-type n=str" in caught.value.hint
    assert [sample["n"] for sample in build(source, on_bad="skip").samples] == [1, 3]


def test_labels_are_numbered_in_their_order(tmp_path: Path) -> None:
    built = build(write(tmp_path, "x,kind\n1,pear\n2,apple\n3,pear\n"), label_column="kind")
    assert built.columns == {"label": ("int64", ()), "x": ("int64", ())}
    assert built.plan.label_names == ("apple", "pear")
    assert [sample["label"] for sample in built.samples] == [1, 0, 1]


def test_a_row_with_more_fields_is_named_by_its_line(tmp_path: Path) -> None:
    source = write(tmp_path, 'a,b\n1,"x\ny"\n\n2,3,4\n5,6\n')
    (found,) = bad(source)
    assert found.where.endswith("a.csv:5") and found.why == "has 3 fields, the header has 2"
    assert len(build(source, on_bad="skip").samples) == 2


def test_quotes_byte_order_mark_and_line_ends(tmp_path: Path) -> None:
    source = write(tmp_path, b'\xef\xbb\xbfa,b\r\n"x,\r\ny","""q"""\r\nz,\r\n')
    assert [sample.values for sample in good(source)] == [{"a": "x,\r\ny", "b": '"q"'}, {"a": "z", "b": ""}]


@pytest.mark.parametrize(("text", "reason"), [
    ("", "the header is missing"), ("a,,b\n", "has a column without a name"),
    ("a,b,a\n1,2,3\n", "names 'a' twice"),
    (b"\xff,b\n", "not valid UTF-8"),
])  # fmt: skip
def test_a_bad_header_is_named(tmp_path: Path, text: str | bytes, reason: str) -> None:
    with pytest.raises(DataError, match=rf"a.csv:1: .*{reason}"):
        write(tmp_path, text).units()


def test_bytes_that_are_no_text_are_named_by_their_line(tmp_path: Path) -> None:
    (found,) = bad(write(tmp_path, b"a\nx\n\xff\xff\ny\n"))
    assert found.where.endswith("a.csv:3") and "not valid UTF-8" in found.why


def test_a_quote_that_is_never_closed_is_named(tmp_path: Path) -> None:
    (found,) = bad(write(tmp_path, 'a\n1\n"2\n3\n'))
    assert found.where.endswith("a.csv:3") and "not valid CSV" in found.why


def test_a_compressed_table_is_read(tmp_path: Path) -> None:
    source = write(tmp_path, gzip.compress(b"a\n1\n2\n"), "a.csv.gz")
    assert [sample.values["a"] for sample in good(source)] == ["1", "2"]


def test_tables_with_another_header_are_named(tmp_path: Path) -> None:
    write(tmp_path, "a,b\n1,2\n")
    source = write(tmp_path, "a,c\n1,2\n", "b.csv")
    with pytest.raises(DataError, match=r"b.csv:2 lacks b and also has c, compared with .*a.csv:2"):
        build(source)


_FIELD = st.text(st.characters(codec="utf-8", exclude_characters="\r"), max_size=8)


@given(
    rows=st.lists(st.tuples(_FIELD, _FIELD), max_size=30),
    unit=st.integers(1, 60),
    ends=st.sampled_from(["\n", "\r\n"]),
)
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_units_of_any_size_give_the_same_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: list[tuple[str, str]], unit: int, ends: str
) -> None:
    with (tmp_path / "a.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator=ends)
        writer.writerows([("k", "v"), *rows])
    source = CsvFiles(patterns=[str(tmp_path / "a.csv")])
    expected = [(row.values, row.where) for row in good(source)]
    assert [(v["k"], v["v"]) for v, _ in expected] == rows
    monkeypatch.setattr(sample_csv, "UNIT_BYTES", unit)
    units = source.units()
    assert [(row.values, row.where) for row in good(source)] == expected
    assert [u.start for u in units[1:]] == [u.stop for u in units[:-1]]
    assert units[-1].stop is None
    monkeypatch.undo()


def test_a_text_among_numbers_is_noted(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y,z\n" + "1,a,1\n" * 20 + "foo,b,2\n")
    made = build(CsvFiles(patterns=[f"{tmp_path}/a.csv"]))
    assert made.columns["x"] == ("str", None)
    (note,) = made.plan.notes
    assert note.startswith(f"column 'x' is text because of 'foo' at {tmp_path}/a.csv:22; 20 fields")
    assert build(CsvFiles(patterns=[f"{tmp_path}/a.csv"]), types={"x": "str"}).plan.notes == ()


@pytest.mark.parametrize("mark", [";", "\t"])
def test_another_delimiter_is_noticed(tmp_path: Path, mark: str) -> None:
    (tmp_path / "a.csv").write_text(f"x{mark}y\n1{mark}2\n")
    with pytest.raises(DataError, match="the header has one column only") as caught:
        CsvFiles(patterns=[f"{tmp_path}/a.csv"]).units()
    assert f"--delimiter {mark!r}" in caught.value.hint
    assert len(build(CsvFiles(patterns=[f"{tmp_path}/a.csv"], delimiter=mark)).columns) == 2
