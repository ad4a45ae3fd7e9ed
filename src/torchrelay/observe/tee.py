"""One sink that feeds several."""

from collections.abc import Sequence

from torchrelay.core.record import Record
from torchrelay.observe.journal import Sink


class Tee:
    """Hands every record to each sink in turn."""

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self._sinks = tuple(sinks)

    def write(self, record: Record) -> None:
        """Give the record to every sink."""
        for sink in self._sinks:
            sink.write(record)

    def flush(self) -> None:
        """Flush every sink."""
        for sink in self._sinks:
            sink.flush()

    def close(self) -> None:
        """Close every sink."""
        for sink in self._sinks:
            sink.close()
