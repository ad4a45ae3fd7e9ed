"""The one place that reads the wall clock, so that tests can pass their own."""

import time
from collections.abc import Callable
from datetime import UTC, datetime

Clock = Callable[[], float]
"""Returns Unix time in seconds."""

system_clock: Clock = time.time


def iso_time(unix_s: float) -> str:
    """UTC with milliseconds, sortable as text: 2026-11-30T14:03:07.123Z."""
    moment = datetime.fromtimestamp(unix_s, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"
