"""Which whole shards are set aside for validation, since samples of adopted data are not moved. Pure."""

from collections.abc import Mapping, Sequence

from torchrelay.core.errors import DataError
from torchrelay.data.manifest import TRAIN, VALIDATION, ShardEntry


def set_aside(entries: Sequence[ShardEntry], share: float) -> dict[str, tuple[ShardEntry, ...]]:
    """Both splits: about `share` of the shards go to validation, those whose hash is low.

    A shard that stays as it is keeps its split when more shards are adopted later. DataError when a
    split would be empty.
    """
    chosen = [place for place, entry in enumerate(entries) if _place(entry) < share]
    if 0 < len(chosen) < len(entries):
        aside = set(chosen)
        return {
            TRAIN: tuple(entry for place, entry in enumerate(entries) if place not in aside),
            VALIDATION: tuple(entries[place] for place in chosen),
        }
    lowest = min(map(_place, entries))
    empty = TRAIN if chosen else VALIDATION
    raise DataError(
        f"a share of {share:.3g} of the shards, of which there are {len(entries):,}, leaves {empty} empty; "
        "whole shards are set aside, by their hash",
        hint=f"use a share of at least {lowest * 100 + 0.1:.1f}%, or put validation into a folder of its own"
        if not chosen and len(entries) > 1
        else "put validation into a folder of its own and use --split validation=FOLDER",
    )


def check_distinct(splits: Mapping[str, Sequence[ShardEntry]]) -> None:
    """DataError when the same bytes are in two splits, or the same file is there twice."""
    seen: dict[str, tuple[str, ShardEntry]] = {}
    for split, entries in splits.items():
        for entry in entries:
            other = seen.setdefault(entry.sha256, (split, entry))
            if other[1] is entry or (other[0] == split and other[1].key == entry.key):
                continue  # equal spans of one file of tokens
            raise DataError(
                f"{other[1].key} ({other[0]}) and {entry.key} ({split}) hold the same bytes",
                hint="remove one of them, or leave it out with a pattern",
            )


def _place(entry: ShardEntry) -> float:
    """Where the hash of a shard lies, 0 to 1."""
    return int(entry.sha256[:16], 16) / 2**64
