"""`torchrelay data build`: make a version of a dataset."""

from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from torchrelay.cli.data_view import show_tokenizer, split_table
from torchrelay.cli.option import DEFAULT_STORE, StoreOption
from torchrelay.cli.table import make_console, print_lines, progress_bar
from torchrelay.core.errors import RecipeError
from torchrelay.core.units import parse_bytes, parse_fraction
from torchrelay.store.open import open_store

if TYPE_CHECKING:  # numpy is imported by the commands that need it; the others start fast
    from torchrelay.data.build.dataset_build import BuildResult
    from torchrelay.data.build.input import Input

_Value = TypeVar("_Value")


class SplitChoice(StrEnum):
    """How text is divided between training and validation."""

    DOCUMENT = "document"
    TAIL = "tail"


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
    from torchrelay.data.build.dataset_build import BuildRequest, build_dataset

    request = BuildRequest(
        documents=_choose_input(text or [], jsonl or [], more or [], field, label_field),
        tokenizer=tokenizer,
        end_token=end_token,
        validation=_parse("--validation", parse_fraction, validation),
        split=split.value,
        shard_bytes=_parse("--shard-size", parse_bytes, shard_size),
    )
    with progress_bar() as report:
        result = build_dataset(open_store(store), name, request, progress=report)
    _print_result(result, store)


def _choose_input(
    text: list[str], jsonl: list[str], more: list[str], field: str | None, label_field: str | None
) -> "Input":
    from torchrelay.data.build.input import JsonLines, TextFiles

    if bool(text) == bool(jsonl):
        raise RecipeError("give --text GLOB or --jsonl GLOB, not both" if text else "give --text or --jsonl")
    if text:
        if field or label_field:
            raise RecipeError("--field and --label-field belong to --jsonl; --text takes whole files")
        return TextFiles([*text, *more])
    if field is None:
        raise RecipeError("--jsonl needs --field, the name of the field that holds the text")
    return JsonLines(patterns=[*jsonl, *more], field=field, label_field=label_field)


def _parse(option: str, parse: Callable[[str], _Value], text: str) -> _Value:
    try:
        return parse(text)
    except ValueError as error:
        raise RecipeError(f"{option}: {error}") from error


def _print_result(result: "BuildResult", store: str) -> None:
    manifest = result.manifest
    console = make_console()
    console.print(split_table(manifest))
    known = f"ref {result.ref}" if result.is_new else f"exists already as ref {result.ref}, nothing new"
    lines = {
        "version": f"{manifest.short_version} ({known})",
        "where": f"{open_store(store).url}/datasets/{manifest.name}",
        "tokenizer": show_tokenizer(manifest),
    }
    if manifest.content.label_names is not None:
        lines["labels"] = (
            f"{len(manifest.content.label_names)}: {', '.join(manifest.content.label_names[:20])}"
        )
    if result.empty_documents:
        lines["left out"] = f"{result.empty_documents:,} documents without text"
    at = "" if store == DEFAULT_STORE else f" --store {store}"
    lines["next"] = f"torchrelay data show {manifest.name}{at}; in a recipe: data.dataset: {manifest.name}"
    print_lines(console, lines)
