"""Where a reader stands in its order and how fast it is, told to the other processes of the node."""

import sys
import time
from contextlib import suppress

from torchrelay.data.cache.ledger import Ledger
from torchrelay.data.cache.plan_file import PlanFile
from torchrelay.data.cache.victim import Uses

LATER = sys.float_info.max
"""Later than all that anybody has planned, but sooner than never."""
FIRST_SPEED = 1000.0
"""Slots a second that are assumed before any was read."""


class Pace:
    """Safe from any thread; one thread at a time publishes."""

    def __init__(self, slot: int) -> None:
        self.slot = slot
        """Slot that is read at present."""
        self._start = slot
        self._began_s = time.monotonic()
        self._file: PlanFile | None = None

    def speed(self) -> float:
        """Slots a second since the start."""
        read = self.slot - self._start
        return read / max(1e-6, time.monotonic() - self._began_s) if read > 0 else FIRST_SPEED

    def tell(self) -> tuple[int, float]:
        """The slot and the speed, as everybody now knows them."""
        slot, speed = self.slot, self.speed()
        if self._file is not None:
            with suppress(OSError):
                self._file.move(slot, speed)
        return slot, speed

    def seconds_to(self, slot: int, reach: int) -> float:
        """Time until `slot` is read, by what was told this moment; LATER when it is beyond `reach` slots."""
        now, speed = self.tell()
        return LATER if slot - now > reach else max(0, slot - now) / speed

    def is_published(self) -> bool:
        """Whether the plan is there for the others."""
        return self._file is not None and self._file.is_there()

    def publish(self, ledger: Ledger, uses: Uses) -> None:
        """Tell what will be needed, instead of what was told before; nothing where that cannot be."""
        with suppress(OSError):
            self._file = ledger.publish(uses, self._file)

    def close(self) -> None:
        """Take the plan back."""
        if self._file is not None:
            self._file.close()
