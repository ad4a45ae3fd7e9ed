from pathlib import Path

import pytest

from torchrelay.data.build.journal import FILE, Journal, read_units
from torchrelay.data.build.shard_plan import Position
from torchrelay.data.build.staging import UnitReport
from torchrelay.data.manifest import ShardEntry

ENTRY = ShardEntry(key="k", bytes=3, sha256="a", xxh3_128="b", samples=1, tokens=2, continues=True)


def report(number: int) -> UnitReport:
    return UnitReport(
        id=f"{number}", where="w", size=10, documents=3, empty=1, truncated=0,
        problems=["bad"] * number, items={"train": 7},
    )  # fmt: skip


@pytest.fixture
def written(tmp_path: Path) -> Path:
    journal = Journal(tmp_path)
    journal.add_unit(report(1))
    journal.add_shard("train", ENTRY, Position(1, 2, 3, 4))
    journal.add_unit(report(2))
    journal.close()
    return tmp_path


def test_what_was_appended_is_read_back(written: Path) -> None:
    journal = Journal(written)
    progress = journal.progress
    assert (progress.units, progress.documents, progress.empty, progress.problems) == (2, 6, 2, 3)
    assert progress.input_bytes == 20
    assert progress.entries == {"train": [ENTRY]}
    assert progress.positions == {"train": Position(1, 2, 3, 4)}
    assert list(read_units(written)) == [report(1), report(2)]
    journal.close()


def test_a_file_cut_at_any_byte_gives_the_lines_before_and_can_be_appended(written: Path) -> None:
    data = (written / FILE).read_bytes()
    ends = [number + 1 for number, byte in enumerate(data) if byte == ord("\n")]
    for cut in range(len(data)):
        (written / FILE).write_bytes(data[:cut])
        whole = sum(end <= cut for end in ends)
        journal = Journal(written)
        assert (journal.progress.units, len(journal.progress.entries)) == (
            (whole + 1) // 2,
            int(whole >= 2),
        )
        journal.add_unit(report(5))
        journal.close()
        again = Journal(written)
        assert again.progress.units == (whole + 1) // 2 + 1
        again.close()


def test_a_flipped_bit_ends_what_is_believed(written: Path) -> None:
    data = bytearray((written / FILE).read_bytes())
    data[data.index(b"\n") + 20] ^= 1
    (written / FILE).write_bytes(data)
    journal = Journal(written)
    assert (journal.progress.units, journal.progress.entries) == (1, {})
    journal.close()
