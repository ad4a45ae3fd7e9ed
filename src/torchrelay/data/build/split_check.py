"""Splits that are given may not share a document: its id would be trained on and measured."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from torchrelay.core.errors import DataError
from torchrelay.data.build.workbench import ids_path
from torchrelay.data.manifest import SPLITS


def find_shared_id(work: Path, shards: Mapping[str, int]) -> tuple[int, str, str] | None:
    """An id that occurs in two splits, and those two; `shards` tells the number of each split's shards.

    Memory: the ids of all splits but the first, 8 bytes a document.
    """
    small: dict[str, NDArray[np.uint64]] = {}
    names = [split for split in SPLITS if shards.get(split)]
    for split in names[1:]:
        small[split] = np.unique(np.concatenate(list(_read(work, split, shards[split]))))
    for first, second in combinations(small, 2):
        both = np.intersect1d(small[first], small[second], assume_unique=True)
        if both.size:
            return int(both[0]), first, second
    for ids in _read(work, names[0], shards[names[0]]) if names else ():
        for split, known in small.items():
            found = ids[np.isin(ids, known)]
            if found.size:
                return int(found[0]), names[0], split
    return None


def name_places(shared: tuple[int, str, str], found: Iterable[tuple[str, int, str]]) -> DataError:
    """The error for a shared id; `found` gives split, id and place of everything in the input."""
    shared_id, *splits = shared
    places: dict[str, str] = {}
    for split, document_id, where in found:
        if document_id == shared_id and split in splits:
            places.setdefault(split, where)
        if len(places) == len(splits):
            break
    named = " and ".join(f"{places.get(split, '?')} ({split})" for split in splits)
    return DataError(
        f"the same document is in two splits: {named}",
        hint="leave one of them out; documents are told apart by what they hold, or by --id-field",
    )


def _read(work: Path, split: str, shards: int) -> Iterator[NDArray[np.uint64]]:
    for number in range(shards):
        yield np.frombuffer(ids_path(work, split, number).read_bytes(), np.uint64)
