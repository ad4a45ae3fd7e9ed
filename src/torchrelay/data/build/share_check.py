"""Whether the splits got what was asked for: equal documents share a split, so many of them shift it."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from torchrelay.core.errors import DataError
from torchrelay.data.build.document import say_count
from torchrelay.data.build.journal import read_units
from torchrelay.data.build.staging import StagedSplit, staged_folder
from torchrelay.data.formats.ids import read_ids
from torchrelay.data.manifest import Manifest, ShardEntry
from torchrelay.data.shard_bytes import ShardBytes

_FEWEST = 20
"""Of so few, shares are far off by chance."""
_FACTOR = 2


def count_distinct(work: Path) -> int | None:
    """Distinct ids of all that is staged; None where some of it is in shards already."""
    found: list[NDArray[np.uint64]] = []
    for number, report in enumerate(read_units(work)):
        for split in report.items:
            try:
                table = StagedSplit(staged_folder(work, number, report.id) / split).table
            except DataError:
                return None
            found.append(table.ids[table.is_last])
    return len(np.unique(np.concatenate(found))) if found else 0


def name_count(count: int, distinct: int | None, word: str) -> str:
    """`60 samples`, or `3 distinct samples (60 in all; equal ones share a side)`."""
    if distinct is None or distinct == count:
        return say_count(count, word)
    return f"{say_count(distinct, f'distinct {word}')} ({count:,} in all; equal ones share a side)"


def note_shares(
    manifest: Manifest, shares: Mapping[str, float], source: ShardBytes, word: str
) -> Iterator[str]:
    """What to tell when equal ones made a share far from what was asked; reads ids only then."""
    counts = {split: sum(entry.samples for entry in manifest.splits[split]) for split in manifest.splits}
    total = sum(counts.values())
    got = {split: counts.get(split, 0) / total for split in shares} if total > _FEWEST else {}
    far = [split for split, part in got.items() if not 1 / _FACTOR <= part / shares[split] <= _FACTOR]
    if not far:
        return
    distinct = _count_ids(manifest, source)
    if distinct is not None and distinct < total:
        parts = " and ".join(f"{split} has {got[split]:.1%}, not {shares[split]:.1%}" for split in far)
        many = say_count(total, word)
        yield f"{parts}: only {distinct:,} of {many} are distinct, and equal ones share a side"


def _count_ids(manifest: Manifest, source: ShardBytes) -> int | None:
    found: list[NDArray[np.uint64]] = []
    for entry in _entries(manifest):
        ids = read_ids(source, entry, manifest.content)
        if ids is None:
            return None
        found.append(np.unique(ids))
    return len(np.unique(np.concatenate(found)))


def _entries(manifest: Manifest) -> Iterator[ShardEntry]:
    for entries in manifest.splits.values():
        yield from entries
