"""Folders that Hugging Face `datasets` wrote with `save_to_disk`: one dataset, or one for each split."""

import json
from pathlib import Path
from typing import Any

from torchrelay.core.errors import DataError
from torchrelay.data.build.document import parse_split
from torchrelay.data.build.files import Stamp, stamp_file

_HINT = "give a folder that save_to_disk of datasets wrote"


def saved_files(folder: Path) -> list[tuple[str | None, Stamp]]:
    """The Arrow files in their order, each with its split, or None where the folder is one dataset.

    DataError when the folder is something else, or holds more rows than the dataset.
    """
    root = folder.expanduser()
    listing = root / "dataset_dict.json"
    if listing.is_file():
        names = _entry(_read_json(listing), "splits", listing)
        splits = [parse_split(name, str(listing)) for name in names]
        folders = zip(splits, names, strict=True)
        return [(split, file) for split, name in folders for file in _data_files(root / str(name))]
    return [(None, file) for file in _data_files(root)]


def _data_files(folder: Path) -> list[Stamp]:
    path = folder / "state.json"
    tree = _read_json(path)
    if tree.get("_indices_data_files"):
        raise DataError(
            f"{folder} is a selection of the rows in its files",
            hint="call flatten_indices() before save_to_disk()",
        )
    return [stamp_file(folder / str(entry["filename"])) for entry in _entry(tree, "_data_files", path)]


def _entry(tree: dict[str, Any], name: str, path: Path) -> list[Any]:
    found = tree.get(name)
    if not isinstance(found, list):
        raise DataError(f"{path} has no list {name!r}", hint=_HINT)
    return found


def _read_json(path: Path) -> dict[str, Any]:
    try:
        tree = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read {path}: {error}", hint=_HINT) from error
    if not isinstance(tree, dict):
        raise DataError(f"{path} is not a JSON object", hint=_HINT)
    return tree
