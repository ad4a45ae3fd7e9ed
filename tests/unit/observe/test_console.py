import io
from dataclasses import replace

import pytest
from rich.console import Console

from tests.unit.observe.support import CHECKPOINT, ERROR, RESUME, START, STOP, VALIDATION, step_record
from torchrelay.core.record import ExportRecord, Record
from torchrelay.observe import console as console_module
from torchrelay.observe.console import ConsoleSink


def shown(*records: Record, print_every_s: float = 0.0, terminal: bool = False) -> str:
    console = Console(record=True, width=120, file=io.StringIO(), force_terminal=terminal)
    sink = ConsoleSink(console, print_every_s=print_every_s)
    for record in records:
        sink.write(record)
    sink.close()
    return console.export_text()


def test_the_start_says_what_runs_where_and_how_it_is_spread() -> None:
    text = shown(START)
    assert "run t  attempt 1  1.24 M parameters  2 processes on cpu (ddp, 2 × 1)  micro-batch 4 × 1" in text
    assert "1 process on cpu (ddp)" in shown(replace(START, world=1, replicate=1))


def test_a_step_shows_loss_speed_and_what_is_left() -> None:
    text = shown(START, step_record(1), step_record(2, loss=2.0))
    assert "step 1/100  loss 4.0000  800 tokens/s  9.9 s left" in text
    assert "step 2/100  loss 3.9000" in text


def test_speed_after_a_resume_does_not_count_the_tokens_before_it() -> None:
    assert "step 41/100  loss 4.0000  800 tokens/s" in shown(START, RESUME, step_record(41))


def test_lines_come_at_most_so_often_but_the_last_step_is_always_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moments = iter(range(1000, 2000))
    monkeypatch.setattr(console_module.time, "monotonic", lambda: float(next(moments)))
    text = shown(START, *(step_record(step) for step in range(1, 101)), print_every_s=40.0)
    lines = [line for line in text.splitlines() if line.startswith("step ")]
    assert [line.split("/")[0] for line in lines] == ["step 1", "step 41", "step 81", "step 100"]


def test_a_terminal_gets_a_bar_that_leaves_nothing_behind() -> None:
    console = Console(width=120, file=io.StringIO(), force_terminal=True)
    sink = ConsoleSink(console, print_every_s=0.0)
    for record in (START, step_record(50), STOP):
        sink.write(record)
    drawn = console.file.getvalue()  # type: ignore[attr-defined]  # a StringIO
    assert "step 50/100" in drawn
    assert "loss 4.0000" in drawn
    assert "5.0 s left" in drawn
    assert drawn.rstrip().endswith("\x1b[2K")


def test_a_resume_says_from_where_and_what_changed() -> None:
    text = shown(START, RESUME)
    assert "resumed from step 40 (step-000000040/a-1-aa)\n  processes: 4 → 2" in text


def test_a_start_at_nought_where_a_checkpoint_could_have_been_is_said() -> None:
    text = shown(replace(RESUME, checkpoint=None, step=0, reason="no checkpoint was committed before"))
    assert "starting at step 0: no checkpoint was committed before" in text


def test_validation_is_shown_with_bits_per_byte_where_there_are_bytes() -> None:
    assert "step 0  validation loss 5.5000  7.9000 bits per byte  (60 samples, 0.5 s)" in shown(VALIDATION)
    assert "bits per byte" not in shown(replace(VALIDATION, bits_per_byte=None))


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ("committed", "step 40  checkpoint 1.00 MiB in 0.2 s"),
        ("failed", "step 40  checkpoint failed: rank 0: no space in [/full]"),
        ("quarantined", "step 40  checkpoint not usable: rank 0: no space in [/full]"),
        ("deleted", ""),
    ],
)
def test_what_became_of_a_checkpoint_is_shown_word_for_word(state: str, text: str) -> None:
    record = replace(CHECKPOINT, state=state, reason="rank 0: no space in [/full]")
    assert shown(record).strip() == text


def test_the_end_is_said_only_where_it_is_not_the_goal() -> None:
    assert shown(STOP) == ""
    assert "stopped at step 7 as asked" in shown(replace(STOP, step=7, reason="asked to stop"))


def test_the_model_is_mentioned_and_errors_are_left_to_the_launcher() -> None:
    assert shown(ExportRecord(step=1, where="x", bytes=2048, attempt=1)).strip() == "model written: 2.00 KiB"
    assert shown(ERROR) == ""


@pytest.mark.parametrize("failure", [OSError(5, "Input/output error"), SystemExit(1)])
def test_an_output_that_nobody_reads_any_more_does_not_touch_the_training(failure: BaseException) -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise failure

    sink = ConsoleSink(Console(file=Closed()), print_every_s=0.0)
    for record in (START, step_record(1), VALIDATION, STOP):
        sink.write(record)
    sink.flush()
    sink.close()
