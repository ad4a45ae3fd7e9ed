"""What a build has done, so that the same command goes on after it was killed at any moment.

One line each, appended: crc32 in hex, a space, JSON. `unit`: a unit was cut into shards as far as it
fills them. `shard`: a shard is in the store. Lines are read up to the first that is not whole.
"""

import json
import os
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torchrelay.data.build.shard_plan import Position
from torchrelay.data.build.staging import UnitReport
from torchrelay.data.manifest import ShardEntry, plain

FILE = "progress.jsonl"


@dataclass(slots=True)
class Progress:
    """Everything that is done."""

    units: int = 0
    input_bytes: int = 0
    documents: int = 0
    empty: int = 0
    truncated: int = 0
    problems: int = 0
    """Bad inputs that were left out; `read_units` gives them."""
    entries: dict[str, list[ShardEntry]] = field(default_factory=dict)
    """Shards of every split that has any, in stored order."""
    positions: dict[str, Position] = field(default_factory=dict)
    """Where the next shard of a split begins; a split without shards has none."""

    def count(self, report: UnitReport) -> None:
        """One more unit."""
        self.units += 1
        self.input_bytes += report.size
        self.documents += report.documents
        self.empty += report.empty
        self.truncated += report.truncated
        self.problems += len(report.problems)


class Journal:
    """Appends to the file and keeps count. One process, which holds the lock on the folder."""

    def __init__(self, work: Path) -> None:
        """Read what is there; what was not written completely is cut off."""
        self.progress = Progress()
        path = work / FILE
        path.touch()
        sound = 0
        for line, tree in _read_lines(path):
            sound += len(line)
            self._take(tree)
        os.truncate(path, sound)
        self._file = path.open("ab")

    def add_unit(self, report: UnitReport) -> None:
        """The next unit was cut into shards."""
        self._append({"unit": asdict(report)})

    def add_shard(self, split: str, entry: ShardEntry, after: Position) -> None:
        """The next shard of a split is in the store. What was appended so far is durable afterwards."""
        self._append({"shard": plain(entry), "split": split, "after": list(after)})
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Write out what is buffered."""
        self._file.close()

    def _append(self, tree: dict[str, Any]) -> None:
        text = json.dumps(tree).encode()
        self._file.write(b"%08x %s\n" % (zlib.crc32(text), text))
        self._file.flush()
        self._take(tree)

    def _take(self, tree: dict[str, Any]) -> None:
        if "unit" in tree:
            self.progress.count(UnitReport(**tree["unit"]))
        else:
            split = tree["split"]
            self.progress.entries.setdefault(split, []).append(ShardEntry(**tree["shard"]))
            self.progress.positions[split] = Position(*tree["after"])


def read_units(work: Path) -> Iterator[UnitReport]:
    """The units that were cut into shards, in order."""
    for _, tree in _read_lines(work / FILE):
        if "unit" in tree:
            yield UnitReport(**tree["unit"])


def _read_lines(path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    with path.open("rb") as file:
        for line in file:
            crc, _, text = line.rstrip(b"\n").partition(b" ")
            if not line.endswith(b"\n") or crc != b"%08x" % zlib.crc32(text):
                return
            yield line, json.loads(text)
