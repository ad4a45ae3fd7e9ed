from tests.unit.observe.support import START, STOP
from torchrelay.core.record import Record
from torchrelay.observe.tee import Tee


class Listener:
    def __init__(self) -> None:
        self.heard: list[object] = []

    def write(self, record: Record) -> None:
        self.heard.append(record)

    def flush(self) -> None:
        self.heard.append("flush")

    def close(self) -> None:
        self.heard.append("close")


def test_every_sink_hears_everything_in_order() -> None:
    first, second = Listener(), Listener()
    tee = Tee([first, second])
    tee.write(START)
    tee.flush()
    tee.write(STOP)
    tee.close()
    assert first.heard == second.heard == [START, "flush", STOP, "close"]
