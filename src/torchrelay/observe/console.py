"""What a person sees while training: a progress bar on a terminal, a line now and then elsewhere.

A Sink like any other: it reads records and nothing else. Drawn from `write`, at most twice a
second, so that no second thread competes with training.
"""

import time
from contextlib import suppress

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from torchrelay.core.record import (
    CheckpointRecord,
    ExportRecord,
    Record,
    ResumeRecord,
    StartRecord,
    StepRecord,
    StopRecord,
    ValidationRecord,
)
from torchrelay.core.units import format_bytes, format_count, format_seconds

_REDRAW_S = 0.5
_SMOOTHING = 0.05
"""Weight of the newest step in the shown averages."""


class ConsoleSink:
    """Shows a run on a console. For rank 0, one thread."""

    def __init__(self, console: Console, *, print_every_s: float) -> None:
        self._console = console
        self._bar: Progress | None = None
        self._task = TaskID(0)
        self._pause_s = _REDRAW_S if console.is_terminal else print_every_s
        self._drawn_s = 0.0
        self._steps = 0
        self._unit = "tokens"
        self._seconds = 0.0
        self._tokens_before = 0
        self._rate = 0.0
        self._loss = 0.0

    def write(self, record: Record) -> None:
        """Show what is worth showing of a record; nothing any more once nobody reads the output."""
        try:
            self._show(record)
        except (OSError, SystemExit):  # rich ends the program where the reader of its output left
            self._console.quiet = True

    def flush(self) -> None:
        """Nothing waits."""

    def close(self) -> None:
        """Take the bar off the screen."""
        bar, self._bar = self._bar, None
        if bar is not None:
            with suppress(OSError, SystemExit):
                bar.stop()

    def _show(self, record: Record) -> None:
        if isinstance(record, StepRecord):
            self._step(record)
        elif isinstance(record, StartRecord):
            self._start(record)
        elif isinstance(record, ResumeRecord):
            self._resume(record)
        elif isinstance(record, ValidationRecord):
            self._validation(record)
        elif isinstance(record, CheckpointRecord):
            self._checkpoint(record)
        elif isinstance(record, ExportRecord):
            self._print(f"model written: {format_bytes(record.bytes)}")
        elif isinstance(record, StopRecord):
            self._stop(record)

    def _start(self, record: StartRecord) -> None:
        self._steps = record.steps
        self._unit = record.unit
        processes = "1 process" if record.world == 1 else f"{record.world} processes"
        spread = (
            f"{record.engine}, {record.replicate} × {record.shard}" if record.world > 1 else record.engine
        )
        self._print(
            f"run [bold]{record.run}[/bold]  attempt {record.attempt}  "
            f"{format_count(record.parameters)} parameters  {processes} on {record.device} ({spread})  "
            f"micro-batch {record.micro_batch} × {record.accumulation}"
        )

    def _resume(self, record: ResumeRecord) -> None:
        self._tokens_before = record.tokens
        if record.checkpoint is None:
            self._print(f"[yellow]starting at step 0: {record.reason}[/yellow]")
            return
        changes = "".join(f"\n  {escape(change)}" for change in record.changes)
        self._print(f"resumed from step {record.step} ({record.checkpoint}){changes}")

    def _step(self, record: StepRecord) -> None:
        fresh = self._rate == 0.0
        weight = 1.0 if fresh else _SMOOTHING
        rate = (record.tokens - self._tokens_before) / max(record.seconds, 1e-9)
        self._tokens_before = record.tokens
        self._rate += weight * (rate - self._rate)
        self._loss += weight * (record.loss - self._loss)
        self._seconds += weight * (record.seconds - self._seconds)
        now = time.monotonic()
        if now - self._drawn_s >= self._pause_s or record.step == self._steps:
            self._drawn_s = now
            self._draw(record.step)

    def _draw(self, step: int) -> None:
        eta = format_seconds((self._steps - step) * self._seconds)
        if not self._console.is_terminal:
            self._console.print(
                f"step {step}/{self._steps}  loss {self._loss:.4f}  "
                f"{format_count(self._rate)} {self._unit}/s  {eta} left",
                highlight=False,
            )
            return
        if self._bar is None:
            self._bar = Progress(
                TextColumn("step {task.completed:.0f}/{task.total:.0f}"),
                BarColumn(bar_width=None),
                TextColumn("loss {task.fields[loss]:.4f}"),
                TextColumn("{task.fields[rate]} " + self._unit + "/s"),
                TextColumn("{task.fields[eta]} left"),
                console=self._console,
                auto_refresh=False,
                transient=True,
            )
            self._task = self._bar.add_task("", total=self._steps, loss=0.0, rate="", eta="")
            self._bar.start()
        self._bar.update(self._task, completed=step, loss=self._loss, rate=format_count(self._rate), eta=eta)
        self._bar.refresh()

    def _validation(self, record: ValidationRecord) -> None:
        per_byte = "" if record.bits_per_byte is None else f"  {record.bits_per_byte:.4f} bits per byte"
        self._print(
            f"step {record.step}  validation loss {record.loss:.4f}{per_byte}  "
            f"({format_count(record.samples)} samples, {format_seconds(record.seconds)})"
        )

    def _checkpoint(self, record: CheckpointRecord) -> None:
        if record.state == "committed":
            self._print(
                f"step {record.step}  checkpoint {format_bytes(record.bytes)} "
                f"in {format_seconds(record.seconds)}"
            )
        elif record.state == "failed":
            self._print(
                f"[bold red]step {record.step}  checkpoint failed: {escape(record.reason)}[/bold red]"
            )
        elif record.state == "quarantined":
            self._print(
                f"[bold red]step {record.step}  checkpoint not usable: {escape(record.reason)}[/bold red]"
            )

    def _stop(self, record: StopRecord) -> None:
        self.close()
        if record.reason != "finished":
            self._print(
                f"stopped at step {record.step} as asked; start it again (without --fresh) to go on from here"
            )

    def _print(self, text: str) -> None:
        self._console.print(text, highlight=False, soft_wrap=True)
