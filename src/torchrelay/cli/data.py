"""`torchrelay data`: build datasets, list, show and verify them, and print the order of their samples."""

from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

from torchrelay.core.units import parse_bytes, parse_fraction
from torchrelay.store.open import DEFAULT_STORE, open_store

if TYPE_CHECKING:  # numpy is imported by the commands that need it, so that the others start fast
    pass

app = typer.Typer(no_args_is_help=True, help="Build datasets, look at them, verify them.")

WIDTH = 100
"""Columns of a table where the output is no terminal."""

_Report = Callable[[str, int, int], None]


class SplitChoice(str, Enum):
    """How text is divided between training and validation."""

    DOCUMENT = "document"
    TAIL = "tail"


class ReadingChoice(str, Enum):
    """What a sample is; see `data.reading` of the recipe."""

    PACKED = "packed"
    DOCUMENTS = "documents"


StoreOption = Annotated[str, typer.Option("--store", metavar="URL", help="Store or folder of the dataset.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
DatasetArgument = Annotated[
    str, typer.Argument(metavar="NAME[@REF]", help="Dataset, at its newest ref, a ref or a version.")
]


@app.command()
def build(
    name: Annotated[str, typer.Argument(help="What the dataset is called.")],
    more: Annotated[
        list[str] | None, typer.Argument(metavar="[GLOB]...", help="More files for --text or --jsonl.")
    ] = None,
    text: Annotated[
        list[str] | None, typer.Option(metavar="GLOB", help="Plain text: each file is a document.")
    ] = None,
    jsonl: Annotated[
        list[str] | None, typer.Option(metavar="GLOB", help="JSON lines: each line is a document.")
    ] = None,
    field: Annotated[str | None, typer.Option(help="Field of a line that holds the text.")] = None,
    label_field: Annotated[str | None, typer.Option(help="Field of a line that holds its class.")] = None,
    tokenizer: Annotated[
        str, typer.Option(metavar="bytes|chars|PATH", help="Or the path of a tokenizer.json.")
    ] = "bytes",
    end_token: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Mark between documents in a tokenizer file.")
    ] = None,
    validation: Annotated[str, typer.Option(metavar="SHARE", help="Share kept for validation.")] = "5%",
    split: Annotated[
        SplitChoice, typer.Option(help="Keep whole documents, or the tail of each.")
    ] = SplitChoice.DOCUMENT,
    shard_size: Annotated[str, typer.Option(metavar="SIZE", help="Most tokens of a shard.")] = "64MiB",
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Turn text files or JSON lines into a version of a dataset."""
    from torchrelay.data.build import BuildRequest, build_dataset

    source = _Source(text=text, jsonl=jsonl, more=more, field=field, label_field=label_field)
    request = BuildRequest(
        documents=source.documents(),
        tokenizer=tokenizer,
        end_token=end_token,
        validation=_parse("--validation", parse_fraction, validation),
        split=split.value,
        shard_bytes=_parse("--shard-size", parse_bytes, shard_size),
    )
    with _progress_bar() as report:
        result = build_dataset(open_store(store), name, request, progress=report)
    _print_result(result, store)
