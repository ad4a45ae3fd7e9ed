import json
from pathlib import Path

import pytest

from tests.unit.observe.test_tee import Listener
from torchrelay.core.errors import DeadlineError, NumericsError, RankLostError, RecipeError
from torchrelay.core.record import ErrorRecord
from torchrelay.observe.failure import (
    announce_run,
    describe,
    read_announced,
    read_reports,
    record_failure,
    report_failure,
)


def raised(error: Exception) -> Exception:
    try:
        raise error
    except Exception as caught:  # noqa: BLE001 - any error is what is tested
        return caught


def test_an_error_of_ours_is_its_message_hint_and_exit_code() -> None:
    record = describe(raised(NumericsError("loss is nan", hint="lower it")), rank=3, attempt=2)
    assert (record.rank, record.attempt, record.error) == (3, 2, "NumericsError")
    assert (record.message, record.hint, record.exit_code) == ("loss is nan", "lower it", 93)
    assert record.traceback == ""


def test_any_other_error_keeps_its_place_in_the_code() -> None:
    record = describe(raised(KeyError("weight")), rank=0, attempt=1)
    assert record.message == "KeyError: 'weight'"
    assert record.exit_code == 1
    assert Path(__file__).name in record.traceback
    assert "raise error" in record.traceback


def test_a_failure_is_recorded_and_goes_on() -> None:
    sink = Listener()
    with pytest.raises(RecipeError), record_failure(sink, rank=0, attempt=4):
        raise RecipeError("no")
    (record,) = sink.heard
    assert isinstance(record, ErrorRecord)
    assert (record.attempt, record.message, record.exit_code) == (4, "no", 78)


def test_nothing_is_recorded_when_nothing_fails() -> None:
    sink = Listener()
    with record_failure(sink, rank=0, attempt=4):
        pass
    assert sink.heard == []


@pytest.mark.parametrize(
    ("error", "follows"),
    [
        (RankLostError("x"), True),
        (DeadlineError("x"), True),
        (RecipeError("x"), False),
        (KeyError("x"), False),
    ],
)
def test_a_report_tells_the_launcher_whether_it_is_only_an_echo(
    tmp_path: Path, error: Exception, follows: bool
) -> None:
    report_failure(str(tmp_path), raised(error), rank=7)
    (report,) = read_reports(tmp_path)
    assert (report.rank, report.follows) == (7, follows)
    assert report.error == describe(error, rank=7, attempt=0)


def test_reports_come_by_rank_and_damaged_ones_are_left_out(tmp_path: Path) -> None:
    for rank in (2, 0):
        report_failure(str(tmp_path), raised(RecipeError(f"r{rank}")), rank=rank)
    (tmp_path / "rank-00001.json").write_text('{"rank": 1')
    (tmp_path / "rank-00003.json").write_text(json.dumps({"rank": 3}))
    assert [report.rank for report in read_reports(tmp_path)] == [0, 2]


def test_a_report_without_a_folder_or_into_a_missing_one_is_no_error(tmp_path: Path) -> None:
    assert report_failure(None, raised(RecipeError("x")), rank=0).message == "x"
    assert report_failure(str(tmp_path / "gone"), raised(RecipeError("x")), rank=0).exit_code == 78


def test_the_launcher_reads_which_run_its_ranks_work_on(tmp_path: Path) -> None:
    assert read_announced(tmp_path) is None
    announce_run(str(tmp_path), run="t-2", attempt=5)
    assert read_announced(tmp_path) == ("t-2", 5)
    (tmp_path / "run.json").write_text("{")
    assert read_announced(tmp_path) is None
    announce_run(None, run="t", attempt=1)
