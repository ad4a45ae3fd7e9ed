"""Where adopted data lies: what a URL names, and which file belongs to which split."""

import fnmatch
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from torchrelay.core.errors import DataError
from torchrelay.data.manifest import SPLITS, TRAIN

SPLIT_FOLDERS = {
    "train": "train", "val": "validation", "valid": "validation", "validation": "validation", "test": "test",
}  # fmt: skip
"""Folders that are splits when nothing else is said."""

_WILD = re.compile(r"[*?\[{]")
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_MOST_NAMES = 10**6
_FILE = re.compile(r"\.(tar|tgz|tar\.gz|tar\.zst|parquet|bin|idx)$")


class Target(NamedTuple):
    """What a URL names."""

    base: str
    """URL of the folder that keys are relative to."""
    pattern: str | None
    """Which of its files, with wildcards and braces, or None for all."""


def split_url(url: str) -> Target:
    """Cut a URL before its first part with a wildcard, or before the file of data that it ends in."""
    scheme, separator, path = url.partition("://")
    if not separator:
        scheme, path = "", url
    parts = path.rstrip("/").split("/")
    wild = next((place for place, part in enumerate(parts) if _WILD.search(part)), len(parts))
    if wild == len(parts) and _FILE.search(parts[-1]):
        wild -= 1
    base = "/".join(parts[:wild]) or ("/" if path.startswith("/") else ".")
    pattern = "/".join(parts[wild:])
    return Target(f"{scheme}{separator}{base}", pattern or None)


def choose_files(keys: Iterable[str], pattern: str | None) -> list[str]:
    """The keys that the pattern matches, sorted; all without hidden ones where there is none.

    DataError that lists the names which braces spell out and which are not there.
    """
    known = {key for key in keys if not any(part.startswith(".") for part in key.split("/"))}
    if pattern is None:
        return sorted(known)
    names = expand_braces(pattern)
    missing = [name for name in names if not _WILD.search(name) and name not in known]
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise DataError(
            f"{', '.join(missing[:3])}{more} of {pattern!r} {'is' if len(missing) == 1 else 'are'} missing"
        )
    wild = [name.split("/") for name in names if _WILD.search(name)]
    matched = {key for key in known if any(_matches(key.split("/"), parts) for parts in wild)}
    return sorted(matched.union(name for name in names if not _WILD.search(name)))


def expand_braces(pattern: str) -> list[str]:
    """`a-{00..02}{x,y}` as the names it stands for, in order; DataError when they are too many."""
    found = _BRACES.search(pattern)
    if found is None:
        return [pattern]
    before, after = pattern[: found.start()], pattern[found.end() :]
    numbers = _RANGE.fullmatch(found[1])
    choices: Sequence[str] = found[1].split(",")
    if numbers:
        first, last = int(numbers[1]), int(numbers[2])
        if not 0 <= last - first < _MOST_NAMES:
            raise DataError(f"{{{found[1]}}} in {pattern!r} stands for {last - first + 1:,} names")
        choices = [str(number).zfill(len(numbers[1])) for number in range(first, last + 1)]
    tails = expand_braces(after)
    if len(choices) * len(tails) > _MOST_NAMES:
        raise DataError(f"{pattern!r} stands for more than {_MOST_NAMES:,} names")
    return [f"{before}{choice}{tail}" for choice in choices for tail in tails]


def divide_files(keys: Sequence[str], wanted: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Keys by split: by the folders of `wanted` (split → folder), or by the usual names of folders, or
    all for training. DataError when a split would be empty or a file is in none.
    """
    folders = {folder.strip("/"): split for split, folder in wanted.items()} or {
        top: SPLIT_FOLDERS[top]
        for top in sorted({key.partition("/")[0] for key in keys if "/" in key})
        if top in SPLIT_FOLDERS
    }
    if not folders:
        return {TRAIN: tuple(keys)}
    chosen: dict[str, list[str]] = {split: [] for split in SPLITS if split in folders.values()}
    for key in keys:
        split = next((split for folder, split in folders.items() if key.startswith(f"{folder}/")), None)
        if split is not None:
            chosen[split].append(key)
        elif not wanted:
            raise DataError(
                f"{key} is in none of the folders {', '.join(folders)}, which are taken for splits",
                hint="say which folder is which split with --split train=FOLDER, or give a pattern",
            )
    return _checked({split: tuple(keys) for split, keys in chosen.items()}, folders)


def _checked(splits: dict[str, tuple[str, ...]], folders: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    empty = [folder for folder, split in folders.items() if not splits[split]]
    if empty:
        raise DataError(f"there is no data in the folder {empty[0]!r}")
    if TRAIN not in splits:
        raise DataError(
            f"there is no {TRAIN} split, only {', '.join(splits)}",
            hint="name its folder with --split train=FOLDER",
        )
    return splits


def _matches(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    return len(parts) == len(pattern) and all(map(fnmatch.fnmatchcase, parts, pattern))
