"""`torchrelay data`: build datasets, list, show and verify them, and print the order of their samples."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from torchrelay.cli.option import DEFAULT_STORE, JsonOption, StoreOption
from torchrelay.core.errors import DataError, RecipeError
from torchrelay.core.units import format_bytes, format_count, parse_bytes, parse_fraction
from torchrelay.data.dataset import Dataset, list_datasets, list_refs, open_dataset, read_ref
from torchrelay.data.manifest import Manifest
from torchrelay.data.manifest_json import write_manifest
from torchrelay.store.open import open_store

if TYPE_CHECKING:  # numpy and pydantic are imported by the commands that need them; the others start fast
    from torchrelay.data.build.dataset_build import BuildResult
    from torchrelay.data.build.input import Input
    from torchrelay.recipe.data_schema import DataSection

app = typer.Typer(no_args_is_help=True, help="Build datasets, look at them, verify them.")

WIDTH = 100
"""Columns of a table where the output is no terminal."""

_Report = Callable[[str, int, int], None]
_Value = TypeVar("_Value")


class SplitChoice(StrEnum):
    """How text is divided between training and validation."""

    DOCUMENT = "document"
    TAIL = "tail"


class ReadingChoice(StrEnum):
    """What a sample is; see `data.reading` of the recipe."""

    PACKED = "packed"
    DOCUMENTS = "documents"


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
    from torchrelay.data.build.dataset_build import BuildRequest, build_dataset

    request = BuildRequest(
        documents=_choose_input(text or [], jsonl or [], more or [], field, label_field),
        tokenizer=tokenizer,
        end_token=end_token,
        validation=_parse("--validation", parse_fraction, validation),
        split=split.value,
        shard_bytes=_parse("--shard-size", parse_bytes, shard_size),
    )
    with _progress_bar() as report:
        result = build_dataset(open_store(store), name, request, progress=report)
    _print_result(result, store)


@app.command(name="list")
def list_command(store: StoreOption = DEFAULT_STORE, as_json: JsonOption = False) -> None:
    """List the datasets of a store, each at its newest ref."""
    opened = open_store(store)
    datasets = [open_dataset(opened, name) for name in list_datasets(opened)]
    if as_json:
        typer.echo(json.dumps([_summarise(dataset) for dataset in datasets], indent=1))
        return
    if not datasets:
        typer.echo(f"no dataset in {opened.url}; torchrelay data build makes one")
        return
    table = _table("name", "ref", "version", "documents", "tokens", "validation", "size", "created")
    for row in map(_summarise, datasets):
        train, validation = row["splits"]["train"], row["splits"]["validation"]
        table.add_row(
            row["name"],
            str(row["ref"]),
            row["version"][:12],
            format_count(train["documents"] + validation["documents"]),
            format_count(train["tokens"] + validation["tokens"]),
            f"{validation['tokens'] / max(1, train['tokens'] + validation['tokens']):.1%}",
            format_bytes(train["bytes"] + validation["bytes"]),
            row["created"][:16].replace("T", " "),
        )
    _console().print(table)


@app.command()
def show(dataset: DatasetArgument, store: StoreOption = DEFAULT_STORE, as_json: JsonOption = False) -> None:
    """Show what a version of a dataset consists of and how it was built."""
    opened = open_dataset(open_store(store), dataset)
    manifest = opened.manifest
    if as_json:
        typer.echo(write_manifest(manifest).decode(), nl=False)
        return
    numbers = list_refs(opened.store, manifest.name)
    refs = [read_ref(opened.store, manifest.name, number) for number in numbers]
    console = _console()
    console.print(_split_table(manifest))
    lines = {
        "dataset": f"{manifest.name} in {opened.store.url}",
        "version": manifest.version,
        "refs": ", ".join(f"{ref.number} ({ref.version[:12]})" for ref in refs[-8:]),
        "tokenizer": _show_tokenizer(manifest),
        "labels": "none"
        if manifest.content.label_names is None
        else ", ".join(manifest.content.label_names[:20]),
        "built": f"{manifest.build.created} by torchrelay {manifest.build.code}",
        "arguments": json.dumps(dict(manifest.build.arguments)),
    }
    _print_lines(console, lines)


@app.command()
def verify(dataset: DatasetArgument, store: StoreOption = DEFAULT_STORE, as_json: JsonOption = False) -> None:
    """Read every byte of a version and compare it with its manifest; exit code 78 when something is wrong."""
    from torchrelay.data.verify import verify_dataset

    opened = open_dataset(open_store(store), dataset)
    with _progress_bar() as report:
        findings = verify_dataset(opened, progress=lambda done, total: report("verifying", done, total))
    if as_json:
        typer.echo(json.dumps([finding._asdict() for finding in findings], indent=1))
        if findings:
            raise typer.Exit(DataError.exit_code)
        return
    manifest = opened.manifest
    if findings:
        rows = "\n".join(f"  {finding.key}: {finding.problem}" for finding in findings)
        raise DataError(
            f"{manifest.name} version {manifest.short_version} has {len(findings)} problems:\n{rows}",
            hint="build the dataset again from the same input; that writes the same version anew",
        )
    shards = sum(len(entries) for entries in manifest.splits.values())
    typer.echo(f"ok {manifest.name} version {manifest.short_version}: {shards} shards are as they were built")


@app.command()
def order(
    dataset: DatasetArgument,
    first: Annotated[int, typer.Option("--from", min=0, help="First slot.")] = 0,
    stop: Annotated[int, typer.Option("--to", min=0, help="Slot after the last.")] = 10,
    seed: Annotated[int, typer.Option(min=0, help="run.seed of the recipe.")] = 1,
    split: Annotated[str, typer.Option(help="train or validation.")] = "train",
    reading: Annotated[ReadingChoice, typer.Option(help="What a sample is.")] = ReadingChoice.PACKED,
    sequence_length: Annotated[int, typer.Option(min=1, help="Predicted tokens of a sample.")] = 1024,
    lanes: Annotated[int, typer.Option(min=1, help="data.lanes of the recipe.")] = 64,
    window_shards: Annotated[int, typer.Option(min=1, help="data.window_shards of the recipe.")] = 10,
    shuffle: Annotated[bool, typer.Option(help="data.shuffle of the recipe.")] = True,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = False,
) -> None:
    """Print which samples the slots of a run are, and how the order gets there."""
    from torchrelay.recipe.data_schema import DataSection

    section = DataSection(
        dataset=dataset,
        reading=reading.value,
        sequence_length=sequence_length,
        lanes=lanes,
        window_shards=window_shards,
        shuffle=shuffle,
    )
    if stop <= first:
        raise RecipeError(f"--to {stop} is not above --from {first}")
    opened = open_dataset(open_store(store), dataset)
    rows = _trace_rows(section, opened.manifest, split, seed, range(first, stop))
    if as_json:
        typer.echo(json.dumps(rows, indent=1))
        return
    table = _table("slot", "epoch", "lane", "window", "shard", "index", "sample id")
    for row in rows:
        table.add_row(*(f"{value:,}" for value in row.values()))
    _console().print(table)


def _trace_rows(
    section: "DataSection", manifest: Manifest, split: str, seed: int, slots: range
) -> list[dict[str, int]]:
    import numpy as np

    from torchrelay.data.reading import make_order

    trace = make_order(section, manifest, split, seed).trace(np.arange(slots.start, slots.stop))
    columns = {
        "slot": slots,
        "epoch": trace.epochs.tolist(),
        "lane": trace.lanes.tolist(),
        "window": trace.windows.tolist(),
        "shard": trace.located.shards.tolist(),
        "index": trace.located.indexes.tolist(),
        "sample_id": trace.located.sample_ids.tolist(),
    }
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


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
    console = _console()
    console.print(_split_table(manifest))
    known = f"ref {result.ref}" if result.is_new else f"exists already as ref {result.ref}, nothing new"
    lines = {
        "version": f"{manifest.short_version} ({known})",
        "where": f"{open_store(store).url}/datasets/{manifest.name}",
        "tokenizer": _show_tokenizer(manifest),
    }
    if manifest.content.label_names is not None:
        lines["labels"] = (
            f"{len(manifest.content.label_names)}: {', '.join(manifest.content.label_names[:20])}"
        )
    if result.empty_documents:
        lines["left out"] = f"{result.empty_documents:,} documents without text"
    at = "" if store == DEFAULT_STORE else f" --store {store}"
    lines["next"] = f"torchrelay data show {manifest.name}{at}; in a recipe: data.dataset: {manifest.name}"
    _print_lines(console, lines)


def _split_table(manifest: Manifest) -> Table:
    table = _table("split", "documents", "tokens", "text", "longest document", "shards", "size")
    for split, entries in manifest.splits.items():
        totals = manifest.totals(split)
        table.add_row(
            split,
            f"{totals.samples:,}",
            f"{totals.tokens:,}",
            format_bytes(totals.text_bytes),
            f"{totals.longest:,}",
            f"{len(entries):,}",
            format_bytes(sum(entry.bytes for entry in entries)),
        )
    return table


def _show_tokenizer(manifest: Manifest) -> str:
    record = manifest.tokenizer
    end = f"{record.end_token}" if record.end_text is None else f"{record.end_token} {record.end_text}"
    return f"{record.kind}, {record.vocabulary:,} ids, end mark {end}, stored as {manifest.token_dtype}"


def _summarise(dataset: Dataset) -> dict[str, Any]:
    manifest = dataset.manifest
    splits = {
        split: {
            "documents": manifest.totals(split).samples,
            "tokens": manifest.totals(split).tokens,
            "shards": len(entries),
            "bytes": sum(entry.bytes for entry in entries),
        }
        for split, entries in manifest.splits.items()
    }
    return {
        "name": manifest.name,
        "ref": list_refs(dataset.store, manifest.name)[-1],
        "version": manifest.version,
        "created": manifest.build.created,
        "splits": splits,
    }


def _console() -> Console:
    console = Console(markup=False, highlight=False)
    return console if console.is_terminal else Console(markup=False, highlight=False, width=WIDTH)


def _table(first: str, *rest: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(first)
    for name in rest:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _print_lines(console: Console, lines: dict[str, str]) -> None:
    for name, value in lines.items():
        console.print(f"{name:<10} {value}", soft_wrap=True)


@contextmanager
def _progress_bar() -> Iterator[_Report]:
    """A bar on a terminal, nothing elsewhere."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("")
        yield lambda phase, done, total: progress.update(task, description=phase, completed=done, total=total)
