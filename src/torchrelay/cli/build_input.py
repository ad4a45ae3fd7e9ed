"""What `torchrelay data build` is to read: one input from the options of the command line."""

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchrelay.core.errors import RecipeError

if TYPE_CHECKING:
    from torchrelay.data.build.sample_input import SampleInput
    from torchrelay.data.build.unit import Input

PATTERNS = ("text", "jsonl", "parquet", "arrow", "tar", "npy", "npz", "csv", "table")
"""Options that take files, for which others can be named for validation and test."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputOptions:
    """The options that say what is read, as they were given."""

    inputs: Mapping[str, Sequence[str]]
    """Values by option, of the options that were given."""
    options: Mapping[str, Any]
    """Keyword arguments of a Python function."""
    more: Sequence[str] = ()
    """Files that the shell listed; they belong to the one option that takes files."""
    validation_from: Sequence[str] = ()
    test_from: Sequence[str] = ()
    field: str | None = None
    label_field: str | None = None
    id_field: str | None = None
    split_field: str | None = None
    whole: bool = False
    """Whether an npz file is one sample."""
    delimiter: str = ","

    def given(self) -> dict[str, Sequence[str]]:
        """Patterns by the split that is given for them, but for the first input's own."""
        named = {"validation": self.validation_from, "test": self.test_from}
        return {split: list(patterns) for split, patterns in named.items() if patterns}


def choose_input(options: InputOptions) -> "Input | Sequence[SampleInput]":
    """The documents or samples that the options name; RecipeError when they do not go together."""
    kind = _only_kind(options)
    if kind == "python":
        _let_import_here()
    values = [*options.inputs[kind], *options.more]
    if options.more and kind not in PATTERNS:
        raise RecipeError(f"--{kind} takes no files, but {options.more[0]!r} stands after the name")
    if options.given() and kind not in PATTERNS:
        raise RecipeError(f"--validation-from and --test-from take the place of what --{kind} tells itself")
    if options.options and kind != "python":
        raise RecipeError("--option belongs to --python")
    if kind in ("images", "hf", "python") and len(values) > 1:
        raise RecipeError(f"give --{kind} once")
    if _holds_documents(kind, values, options):
        return _documents(kind, values, options)
    if options.split_field is not None:
        raise RecipeError("--split-field belongs to documents; use --validation-from for samples")
    return _samples(kind, values, options)


def _let_import_here() -> None:
    """A function may lie in the current folder, as for the ranks of `train`; workers get the same path."""
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)


def parse_options(words: Iterable[str], name: str) -> dict[str, Any]:
    """`key=value` words as a dict; values are JSON where they can be, else texts."""
    found: dict[str, Any] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise RecipeError(f"{name} {word!r} is not of the form key=value")
        try:
            found[key] = json.loads(value)
        except ValueError:
            found[key] = value
    return found


def _only_kind(options: InputOptions) -> str:
    names = ", ".join(f"--{kind}" for kind in ("text", "jsonl", "parquet", "arrow", "hf", "python"))
    others = ", ".join(f"--{kind}" for kind in ("images", "tar", "npy", "npz", "csv", "table"))
    kinds = list(options.inputs)
    if len(kinds) != 1:
        got = " and ".join(f"--{kind}" for kind in kinds)
        raise RecipeError(
            f"give one kind of input, not {got}" if kinds else "give an input",
            hint=f"text: {names}; samples: {others}",
        )
    return kinds[0]


def _holds_documents(kind: str, values: Sequence[str], options: InputOptions) -> bool:
    if kind in ("text", "jsonl", "parquet", "arrow"):
        return True
    if kind == "hf":
        return options.field is not None
    return kind == "python" and (options.field is not None or _gives_text(values[0], options.options))


def _gives_text(reference: str, arguments: Mapping[str, Any]) -> bool:
    """Whether the first thing that a function gives is a text."""
    from torchrelay.data.build.user_code import call_function, iterate

    found = call_function(reference, arguments)
    first = next(iterate(reference, found, "item"), None) if isinstance(found, Iterable) else None
    return isinstance(first, str | bytes)


def _documents(kind: str, values: Sequence[str], options: InputOptions) -> "Input":
    from torchrelay.data.build import input as inputs
    from torchrelay.data.build.document import Fields
    from torchrelay.data.build.python_input import TEXT, PythonDocuments

    record = (options.label_field, options.id_field, options.split_field)
    if kind == "text":
        if options.field or any(record):
            raise RecipeError("--field and --label-field belong to records; --text takes whole files")
        return inputs.TextFiles(values, options.given() or None)
    if options.field is None and kind != "python":
        raise RecipeError(f"--{kind} needs --field, the name of the field that holds the text")
    label, own_id, split = record
    fields = Fields(text=options.field or TEXT, label=label, id=own_id, split=split)
    if kind == "python":
        return PythonDocuments(reference=values[0], fields=fields, options=options.options)
    if kind == "hf":
        return inputs.HuggingFaceFolder(values[0], fields)
    if options.given() and split is not None:
        raise RecipeError("--split-field and --validation-from both say where documents go; give one")
    make = {
        "jsonl": inputs.json_lines,
        "parquet": inputs.parquet_files,
        "arrow": inputs.arrow_files,
    }[kind]
    return make(values, fields, options.given() or None)


def _samples(kind: str, values: Sequence[str], options: InputOptions) -> "Sequence[SampleInput]":
    from torchrelay.data.build.sample_folder import ImageFolder
    from torchrelay.data.build.sample_iterable import PythonSamples
    from torchrelay.data.build.sample_table import SavedDataset

    if kind == "images":
        return [ImageFolder(Path(values[0]))]
    if kind == "hf":
        return [SavedDataset(Path(values[0]))]
    if kind == "python":
        return [PythonSamples(reference=values[0], options=options.options)]
    first = "train" if options.given() else None
    parts = [(first, values), *options.given().items()]
    return [_sample_files(kind, patterns, split, options) for split, patterns in parts]


def _sample_files(
    kind: str, patterns: Sequence[str], split: str | None, options: InputOptions
) -> "SampleInput":
    from torchrelay.data.build.sample_array import NpyFiles, NpzFiles
    from torchrelay.data.build.sample_csv import CsvFiles
    from torchrelay.data.build.sample_table import ParquetFiles
    from torchrelay.data.build.sample_tar import TarFiles

    if kind == "npz":
        return NpzFiles(patterns=patterns, split=split, rows=not options.whole)
    if kind == "csv":
        delimiter = "\t" if options.delimiter == "\\t" else options.delimiter
        if len(delimiter) != 1:
            raise RecipeError(f"--delimiter is one character, not {delimiter!r}")
        return CsvFiles(patterns=patterns, split=split, delimiter=delimiter)
    if kind == "tar":
        return TarFiles(patterns=patterns, split=split)
    if kind == "npy":
        return NpyFiles(patterns=patterns, split=split)
    return ParquetFiles(patterns=patterns, split=split)
