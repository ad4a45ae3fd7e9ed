"""`torchrelay data build`: make a version of a dataset."""

import os
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from torchrelay.cli.build_input import InputOptions, choose_input, parse_options
from torchrelay.cli.build_progress import build_progress
from torchrelay.cli.data_view import show_tokenizer, split_table
from torchrelay.cli.option import DEFAULT_STORE, StoreOption
from torchrelay.cli.table import make_console, print_lines
from torchrelay.core.errors import RecipeError
from torchrelay.core.units import parse_bytes, parse_fraction
from torchrelay.store.open import open_store

if TYPE_CHECKING:  # numpy is imported by the commands that need it; the others start fast
    from torchrelay.data.build.dataset_build import BuildRequest, BuildResult, SampleRequest
    from torchrelay.data.build.sample_input import SampleInput
    from torchrelay.data.build.unit import Input

_Value = TypeVar("_Value")
_STOPPED = 130
_Globs = Annotated[list[str] | None, typer.Option(metavar="GLOB")]


class SplitChoice(StrEnum):
    """How text is divided between the splits."""

    DOCUMENT = "document"
    TAIL = "tail"


class LongChoice(StrEnum):
    """What becomes of a document longer than a pack."""

    REFUSE = "refuse"
    TRUNCATE = "truncate"


class BadChoice(StrEnum):
    """What becomes of bad input."""

    STOP = "stop"
    SKIP = "skip"


def _globs(text: str, panel: str) -> Any:
    return typer.Option(metavar="GLOB", help=text, rich_help_panel=panel)


_TEXT = "Text"
_SAMPLES = "Samples"
_SPLITS = "Splits"
_RUN = "How it is done"
_VALIDATION = "5%"
_TEST = "0%"


def build(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="What the dataset is called.")],
    more: Annotated[
        list[str] | None, typer.Argument(metavar="[GLOB]...", help="More files for the input.")
    ] = None,
    text: Annotated[list[str] | None, _globs("Plain text: each file is a document.", _TEXT)] = None,
    jsonl: Annotated[list[str] | None, _globs("JSON lines: each line is a document.", _TEXT)] = None,
    parquet: Annotated[list[str] | None, _globs("Parquet: each row is a document.", _TEXT)] = None,
    arrow: Annotated[list[str] | None, _globs("Arrow IPC: each row is a document.", _TEXT)] = None,
    hf: Annotated[
        str | None,
        typer.Option(metavar="FOLDER", help="A folder that save_to_disk of Hugging Face datasets wrote."),
    ] = None,
    python: Annotated[
        str | None,
        typer.Option(metavar="PACKAGE.MODULE:FUNCTION", help="What a function of yours gives, one by one."),
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Argument of the function of --python.")
    ] = None,
    field: Annotated[str | None, typer.Option(help="Field of a record that holds the text.")] = None,
    label_field: Annotated[str | None, typer.Option(help="Field of a record that holds its class.")] = None,
    images: Annotated[
        str | None,
        typer.Option(metavar="FOLDER", help="Images, in a folder for each class.", rich_help_panel=_SAMPLES),
    ] = None,
    tar: Annotated[list[str] | None, _globs("Tar files in the WebDataset layout.", _SAMPLES)] = None,
    npy: Annotated[list[str] | None, _globs("Arrays: each row is a sample.", _SAMPLES)] = None,
    npz: Annotated[
        list[str] | None, _globs("Arrays by name: row i of all of them is a sample.", _SAMPLES)
    ] = None,
    whole: Annotated[
        bool, typer.Option("--whole", help="Each file of --npz is one sample.", rich_help_panel=_SAMPLES)
    ] = False,
    csv: Annotated[list[str] | None, _globs("Tables as text: each row is a sample.", _SAMPLES)] = None,
    delimiter: Annotated[
        str, typer.Option(help="Between the fields of --csv.", rich_help_panel=_SAMPLES)
    ] = ",",
    table: Annotated[list[str] | None, _globs("Parquet: each row is a sample.", _SAMPLES)] = None,
    ragged: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="Arrays may differ in shape.", rich_help_panel=_SAMPLES),
    ] = None,
    column_type: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN=TYPE", help="Type to store it in.", rich_help_panel=_SAMPLES),
    ] = None,
    tokenizer: Annotated[
        str, typer.Option(metavar="bytes|chars|PATH", help="Or the path of a tokenizer.json.")
    ] = "bytes",
    end_token: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Mark between documents in a tokenizer file.")
    ] = None,
    pack: Annotated[
        int | None,
        typer.Option(metavar="TOKENS", help="Plan packs of whole documents of at most that many tokens."),
    ] = None,
    long_documents: Annotated[
        LongChoice, typer.Option(help="What becomes of documents longer than a pack.")
    ] = LongChoice.REFUSE,
    validation: Annotated[
        str | None,
        typer.Option(
            metavar="SHARE",
            help="Share kept for validation.",
            rich_help_panel=_SPLITS,
            show_default=_VALIDATION,
        ),
    ] = None,
    test: Annotated[
        str | None,
        typer.Option(
            metavar="SHARE", help="Share kept for test.", rich_help_panel=_SPLITS, show_default=_TEST
        ),
    ] = None,
    split: Annotated[
        SplitChoice,
        typer.Option(help="Keep whole documents, or the tail of each.", rich_help_panel=_SPLITS),
    ] = SplitChoice.DOCUMENT,
    id_field: Annotated[
        str | None,
        typer.Option(
            help="Field that a document keeps for good; decides its split.", rich_help_panel=_SPLITS
        ),
    ] = None,
    split_field: Annotated[
        str | None,
        typer.Option(help="Field that says train, validation or test.", rich_help_panel=_SPLITS),
    ] = None,
    validation_from: Annotated[
        list[str] | None, _globs("Files for validation; the others are for training.", _SPLITS)
    ] = None,
    test_from: Annotated[list[str] | None, _globs("Files for test.", _SPLITS)] = None,
    on_bad: Annotated[
        BadChoice, typer.Option(help="Stop at bad input, or leave it out and list it.", rich_help_panel=_RUN)
    ] = BadChoice.STOP,
    shard_size: Annotated[
        str, typer.Option(metavar="SIZE", help="Most bytes of a shard.", rich_help_panel=_RUN)
    ] = "64MiB",
    unit_size: Annotated[
        str,
        typer.Option(metavar="SIZE", help="Text that a process takes at a time.", rich_help_panel=_RUN),
    ] = "8MiB",
    processes: Annotated[
        int | None,
        typer.Option(min=1, help="Processes; default: one for each core.", rich_help_panel=_RUN),
    ] = None,
    work: Annotated[
        str | None,
        typer.Option(metavar="FOLDER", help="Local disk for unfinished work.", rich_help_panel=_RUN),
    ] = None,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Turn text, images, arrays or tables into a version of a dataset.

    The same command goes on where it was when it was killed before.
    """
    try:
        result = _build(name, context.params, store)
    except KeyboardInterrupt:
        typer.echo("stopped; run the same command to go on", err=True)
        raise typer.Exit(_STOPPED) from None
    _print_result(result, store)


def _build(name: str, given: dict[str, Any], store: str) -> "BuildResult":
    request = _request(given)
    from torchrelay.data.build.dataset_build import BuildRequest, build_dataset

    with build_progress("tokens" if isinstance(request, BuildRequest) else "bytes") as report:
        return build_dataset(open_store(store), name, request, progress=report)


def _request(given: dict[str, Any]) -> "BuildRequest | SampleRequest":
    """What the options of the command line ask for."""
    source = choose_input(_input_options(given))
    settings = {
        "validation": _parse("--validation", parse_fraction, given["validation"] or _VALIDATION),
        "test": _parse("--test", parse_fraction, given["test"] or _TEST),
        "shares_asked": given["validation"] is not None or given["test"] is not None,
        "shard_bytes": _parse("--shard-size", parse_bytes, given["shard_size"]),
        "on_bad": str(given["on_bad"]),
        "processes": given["processes"] or _count_cores(),
        "work": None if given["work"] is None else Path(given["work"]).expanduser(),
    }
    if isinstance(source, Sequence):
        return _sample_request(source, settings, given)
    return _text_request(source, settings, given)


def _input_options(given: dict[str, Any]) -> InputOptions:
    lists = ("text", "jsonl", "parquet", "arrow", "tar", "npy", "npz", "csv", "table")
    inputs = {kind: given[kind] for kind in lists if given[kind]}
    inputs |= {kind: [given[kind]] for kind in ("hf", "python", "images") if given[kind] is not None}
    return InputOptions(
        inputs=inputs,
        more=given["more"] or [],
        validation_from=given["validation_from"] or [],
        test_from=given["test_from"] or [],
        field=given["field"],
        label_field=given["label_field"],
        id_field=given["id_field"],
        split_field=given["split_field"],
        options=parse_options(given["option"] or [], "--option"),
        whole=given["whole"],
        delimiter=given["delimiter"],
    )


def _text_request(source: "Input", settings: dict[str, Any], given: dict[str, Any]) -> "BuildRequest":
    from torchrelay.data.build.dataset_build import BuildRequest

    if given["ragged"] or given["column_type"]:
        raise RecipeError("--ragged and --column-type belong to samples; this input is text")
    return BuildRequest(
        documents=source,
        tokenizer=given["tokenizer"],
        end_token=given["end_token"],
        split="tail" if given["split"] == "tail" else "document",
        pack=given["pack"],
        long_documents="truncate" if given["long_documents"] == "truncate" else "refuse",
        unit_bytes=_parse("--unit-size", parse_bytes, given["unit_size"]),
        **settings,
    )


def _sample_request(
    sources: "Sequence[SampleInput]", settings: dict[str, Any], given: dict[str, Any]
) -> "SampleRequest":
    from torchrelay.data.build.dataset_build import SampleRequest
    from torchrelay.data.build.sample_columns import SampleOptions

    if (
        given["tokenizer"] != "bytes"
        or given["end_token"]
        or given["pack"]
        or str(given["split"]) != "document"
    ):
        raise RecipeError("--tokenizer, --end-token, --pack and --split belong to text, not samples")
    options = SampleOptions(
        label_column=given["label_field"],
        id_column=given["id_field"],
        ragged=given["ragged"] or (),
        types={name: str(dtype) for name, dtype in _pairs(given["column_type"]).items()},
        on_bad=settings["on_bad"],
    )
    return SampleRequest(sources=sources, options=options, **settings)


def _pairs(words: list[str] | None) -> dict[str, Any]:
    return parse_options(words or [], "--column-type")


def _count_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _parse(option: str, parse: Callable[[str], _Value], text: str) -> _Value:
    try:
        return parse(text)
    except ValueError as error:
        raise RecipeError(f"{option}: {error}") from error


def _print_result(result: "BuildResult", store: str) -> None:
    manifest = result.manifest
    console = make_console()
    console.print(split_table(manifest))
    known = (
        f"ref {result.ref}" if result.is_new else f"exists already as ref {result.ref}, {_checked(result)}"
    )
    lines = {
        "version": f"{manifest.short_version} ({known})",
        "where": f"{open_store(store).url}/datasets/{manifest.name}",
        **_describe_content(result),
    }
    at = "" if store == DEFAULT_STORE else f" --store {store}"
    lines["next"] = f"torchrelay data show {manifest.name}{at}; in a recipe: data.dataset: {manifest.name}"
    print_lines(console, lines)
    for problem in result.skipped:
        typer.echo(f"skipped: {problem}", err=True)
    if result.skipped_list is not None:
        count = manifest.build.skipped
        were = "bad input was" if count == 1 else "bad inputs were"
        typer.echo(f"{count:,} {were} left out; all of them: {result.skipped_list}", err=True)


def _checked(result: "BuildResult") -> str:
    """What a build of a version that was there already has done."""
    if not result.healed:
        return "checked, nothing new"
    return f"{result.healed:,} lost or damaged shard{'s'[: result.healed != 1]} written anew"


def _describe_content(result: "BuildResult") -> dict[str, str]:
    from torchrelay.data.build.document import say_count

    content = result.manifest.content
    lines: dict[str, str] = {}
    if content.tokenizer is not None:
        lines["tokenizer"] = show_tokenizer(result.manifest)
    if content.columns:
        lines["columns"] = ", ".join(f"{column.name} ({column.dtype})" for column in content.columns)
    if content.label_names is not None:
        lines["labels"] = f"{len(content.label_names)}: {', '.join(content.label_names[:20])}"
    if content.pack_length is not None:
        lines["packs"] = _describe_packs(result)
    if result.empty_documents:
        lines["left out"] = f"{say_count(result.empty_documents, 'document')} without text"
    if result.notes:
        lines["note"] = "; ".join(result.notes)
    return lines


def _describe_packs(result: "BuildResult") -> str:
    content = result.manifest.content
    shards = [shard for shards in content.splits.values() for shard in shards]
    packs, tokens = sum(shard.packs for shard in shards), sum(shard.tokens for shard in shards)
    were = "document was" if result.truncated == 1 else "documents were"
    cut = f"; {result.truncated:,} {were} cut" if result.truncated else ""
    full = tokens / (packs * (content.pack_length or 1))
    return f"{packs:,} of {content.pack_length:,} tokens, {full:.1%} full{cut}"
