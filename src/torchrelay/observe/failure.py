"""How a rank says what went wrong: in the journal, and in a file that its launcher reads.

<error folder>/run.json         the run and attempt, written by rank 0 once they are known
<error folder>/rank-00001.json  the error of a rank that failed
"""

import json
import socket
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from torchrelay.core.errors import DeadlineError, ExitCode, RankLostError, RelayError, StoreError
from torchrelay.core.record import ErrorRecord
from torchrelay.observe.journal import Sink


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureReport:
    """A rank's error as its launcher reads it."""

    rank: int
    at_s: float
    """Unix time."""
    follows: bool
    """Whether it is only the echo of another rank's failure (lost contact, deadline)."""
    error: ErrorRecord


@contextmanager
def record_failure(sink: Sink, *, rank: int, attempt: int) -> Iterator[None]:
    """Write an error of the block to the journal, and let it go on."""
    try:
        yield
    except Exception as error:
        if isinstance(error, StoreError):  # it could be used at the start, so it may be back later
            error.exit_code = ExitCode.RETRYABLE
        sink.write(describe(error, rank=rank, attempt=attempt))
        raise


def describe(error: BaseException, *, rank: int, attempt: int) -> ErrorRecord:
    """The error as a record."""
    known = isinstance(error, RelayError)
    return ErrorRecord(
        attempt=attempt,
        rank=rank,
        host=socket.gethostname(),
        error=type(error).__name__,
        message=error.message if isinstance(error, RelayError) else f"{type(error).__name__}: {error}",
        hint=error.hint if isinstance(error, RelayError) else "",
        exit_code=int(error.exit_code) if isinstance(error, RelayError) else int(ExitCode.RETRYABLE),
        traceback="" if known else "".join(traceback.format_exception(error))[-8000:],
    )


def announce_run(folder: str | None, *, run: str, attempt: int) -> None:
    """Tell the launcher which run its ranks work on."""
    if folder is not None:
        with suppress(OSError):
            Path(folder, "run.json").write_text(json.dumps({"run": run, "attempt": attempt}))


def read_announced(folder: Path) -> tuple[str, int] | None:
    """(run, attempt) that rank 0 announced, or None."""
    try:
        content = json.loads((folder / "run.json").read_text())
        return content["run"], content["attempt"]
    except (OSError, ValueError, KeyError):
        return None


def report_failure(folder: str | None, error: BaseException, *, rank: int) -> ErrorRecord:
    """Leave the report of this rank's error for the launcher; returns it as a record."""
    record = describe(error, rank=rank, attempt=0)
    follows = isinstance(error, RankLostError | DeadlineError)
    report = FailureReport(rank=rank, at_s=time.time(), follows=follows, error=record)
    if folder is not None:
        with suppress(OSError):
            Path(folder, f"rank-{rank:05d}.json").write_text(json.dumps(asdict(report)))
    return record


def read_reports(folder: Path) -> list[FailureReport]:
    """The reports that ranks left, by rank."""
    reports = []
    for path in sorted(folder.glob("rank-*.json")):
        with suppress(OSError, ValueError, TypeError, KeyError):
            fields = json.loads(path.read_text())
            fields["error"] = ErrorRecord(**fields["error"])
            reports.append(FailureReport(**fields))
    return reports
