"""Which of several failures was the first cause, and the exit code of the whole. Pure."""

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torchrelay.core.errors import ExitCode
from torchrelay.core.record import ErrorRecord
from torchrelay.observe.failure import FailureReport

OUT_OF_MEMORY_HINT = (
    "out of memory? the kernel's log (dmesg) tells; use more ranks, a smaller micro_batch or fsdp"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A rank process that is over."""

    rank: int
    code: int
    """Exit code; negative for the signal that killed it, as in `subprocess`."""
    at_s: float
    """Unix time when the launcher saw it."""


def choose_cause(ended: Sequence[Ended], reports: Sequence[FailureReport], host: str) -> ErrorRecord | None:
    """The failure that came first, echoes ("lost contact") last; None when nobody failed.

    `ended` holds only ranks that ended by themselves, not those the launcher killed.
    """
    by_rank = {report.rank: report for report in reports}
    failed = [e for e in ended if e.code not in (ExitCode.DONE, ExitCode.CHECKPOINTED)]
    if not failed:
        return None
    first = min(failed, key=lambda e: _order(e, by_rank))
    report = by_rank.get(first.rank)
    return report.error if report else _silent(first, host)


def whole_exit_code(codes: Mapping[int, int], cause: ErrorRecord | None) -> int:
    """What the launcher returns: the cause's code, else 75 when any rank asks for a requeue, else 0."""
    if cause is not None:
        return cause.exit_code
    return ExitCode.CHECKPOINTED if ExitCode.CHECKPOINTED in codes.values() else ExitCode.DONE


def _order(ended: Ended, reports: Mapping[int, FailureReport]) -> tuple[bool, float]:
    report = reports.get(ended.rank)
    return (report.follows, report.at_s) if report else (False, ended.at_s)


def _silent(ended: Ended, host: str) -> ErrorRecord:
    """A rank that died without a word."""
    if ended.code < 0:
        message = f"rank {ended.rank} was killed by {_signal_name(-ended.code)}"
        hint = OUT_OF_MEMORY_HINT if -ended.code == signal.SIGKILL else "its log may hold the native stack"
    else:
        message, hint = f"rank {ended.rank} exited with code {ended.code} and said nothing", "see its log"
    return ErrorRecord(
        attempt=0,
        rank=ended.rank,
        host=host,
        error="RankLostError",
        message=message,
        hint=hint,
        exit_code=ExitCode.RETRYABLE,
        traceback="",
    )


def _signal_name(number: int) -> str:
    try:
        return f"{signal.Signals(number).name} (signal {number})"
    except ValueError:  # a real-time signal
        return f"signal {number}"
