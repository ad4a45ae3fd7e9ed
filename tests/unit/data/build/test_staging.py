from pathlib import Path

import pytest

from torchrelay.core.errors import DataError
from torchrelay.data.build.document import Fields, Intake
from torchrelay.data.build.python_input import RecordBatch
from torchrelay.data.build.staging import (
    Row,
    StagedSplit,
    StageWriter,
    UnitReport,
    find_staged,
    staged_folder,
)

UNIT = RecordBatch("m:f", 0, ({"t": "x"},), Fields(text="t"), 100)


@pytest.fixture
def report(tmp_path: Path) -> UnitReport:
    intake = Intake(on_bad="skip", scratch=tmp_path, documents=3, empty=1, problems=["bad"])
    writer = StageWriter(tmp_path, 7, UNIT)
    writer.append("train", b"abcd", Row(2, 5, 2**64 - 1, -1, False))
    writer.append("test", b"xy", Row(1, 0, 1, 2, True))
    writer.append("train", b"ef", Row(1, 6, 3, 4, True))
    return writer.close(intake)


def test_what_was_staged_is_read_back(tmp_path: Path, report: UnitReport) -> None:
    folder = staged_folder(tmp_path, 7, UNIT.id)
    assert find_staged(tmp_path, 7, UNIT.id) == report
    assert report.items == {"train": 3, "test": 1}
    assert (report.documents, report.empty, report.problems, report.size) == (3, 1, ["bad"], 100)
    split = StagedSplit(folder / "train")
    assert split.payload(1, 5) == b"bcde"
    table = split.table
    assert (table.sizes.tolist(), table.text_bytes.tolist()) == ([2, 1], [5, 6])
    assert (table.ids.tolist(), table.labels.tolist()) == ([2**64 - 1, 3], [-1, 4])
    assert table.is_last.tolist() == [False, True]


@pytest.mark.parametrize("place", [0, 5, 6, 20, -1, -20])
def test_a_damaged_file_is_not_taken_for_staged(tmp_path: Path, report: UnitReport, place: int) -> None:
    path = staged_folder(tmp_path, 7, UNIT.id) / "train"
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)
    assert find_staged(tmp_path, 7, UNIT.id) is None


def test_a_file_that_was_cut_off_is_named(tmp_path: Path, report: UnitReport) -> None:
    path = staged_folder(tmp_path, 7, UNIT.id) / "train"
    for size in (0, 10, len(path.read_bytes()) - 1):
        path.write_bytes(path.read_bytes()[:size] if size else b"")
        with pytest.raises(DataError, match=f"the work file {path} cannot be used"):
            StagedSplit(path)
    assert find_staged(tmp_path, 7, UNIT.id) is None


def test_nothing_is_seen_of_a_unit_before_all_of_it_is_there(tmp_path: Path) -> None:
    writer = StageWriter(tmp_path, 7, UNIT)
    writer.append("train", b"abcd", Row(2, 5, 1, 0, True))
    assert find_staged(tmp_path, 7, UNIT.id) is None
    writer.discard()
    assert list(tmp_path.iterdir()) == []


def test_a_unit_may_hold_nothing(tmp_path: Path) -> None:
    report = StageWriter(tmp_path, 0, UNIT).close(Intake(on_bad="stop", scratch=tmp_path))
    assert report.items == {}
    assert find_staged(tmp_path, 0, UNIT.id) == report
