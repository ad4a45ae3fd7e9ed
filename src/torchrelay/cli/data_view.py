"""`torchrelay data list|show|verify`: what there is, and whether it is sound."""

import json
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.table import Table

from torchrelay.cli.option import DEFAULT_STORE, JsonOption, StoreOption
from torchrelay.cli.table import make_console, make_table, print_lines, progress_bar
from torchrelay.core.errors import DataError
from torchrelay.core.units import format_bytes, format_count
from torchrelay.data.dataset import Dataset, list_datasets, list_refs, list_tags, open_dataset, read_ref
from torchrelay.data.manifest import TRAIN, Manifest
from torchrelay.data.manifest_json import write_manifest
from torchrelay.store.open import open_store

DatasetArgument = Annotated[
    str, typer.Argument(metavar="NAME[@REF]", help="Dataset, at its newest ref, a ref, a tag or a version.")
]


def list_(store: StoreOption = DEFAULT_STORE, as_json: JsonOption = False) -> None:
    """List the datasets of a store, each at its newest ref."""
    opened = open_store(store)
    datasets = [open_dataset(opened, name) for name in list_datasets(opened)]
    if as_json:
        typer.echo(json.dumps([_summarise(dataset) for dataset in datasets], indent=1))
        return
    if not datasets:
        typer.echo(f"no dataset in {opened.url}; torchrelay data build makes one")
        return
    table = make_table("name", "ref", "version", "kind", "samples", "tokens", "held out", "size", "created")
    for row in map(_summarise, datasets):
        samples = sum(split["samples"] for split in row["splits"].values())
        table.add_row(
            row["name"],
            str(row["ref"]),
            row["version"][:12],
            row["kind"],
            format_count(samples),
            format_count(row["tokens"]) if row["tokens"] else "-",
            f"{1 - row['splits'][TRAIN]['samples'] / max(1, samples):.1%}",
            format_bytes(sum(split["bytes"] for split in row["splits"].values())),
            row["created"][:16].replace("T", " "),
        )
    make_console().print(table)


def show(dataset: DatasetArgument, store: StoreOption = DEFAULT_STORE, as_json: JsonOption = False) -> None:
    """Show what a version of a dataset consists of and how it was built."""
    opened = open_dataset(open_store(store), dataset)
    manifest = opened.manifest
    if as_json:
        typer.echo(write_manifest(manifest).decode(), nl=False)
        return
    console = make_console()
    console.print(split_table(manifest))
    if manifest.content.columns:
        console.print()
        console.print(_column_table(manifest))
    print_lines(console, _facts(opened))


def verify(dataset: DatasetArgument, store: StoreOption = DEFAULT_STORE, as_json: JsonOption = False) -> None:
    """Read every byte of a version and compare it with its manifest; exit code 78 when something is wrong."""
    from torchrelay.data.verify import verify_dataset

    opened = open_dataset(open_store(store), dataset)
    with progress_bar() as report:
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


def _facts(dataset: Dataset) -> dict[str, str]:
    manifest, store = dataset.manifest, dataset.store
    refs = [read_ref(store, manifest.name, number) for number in list_refs(store, manifest.name)[-8:]]
    names, length = manifest.content.label_names, manifest.content.pack_length
    facts = {
        "dataset": f"{manifest.name} in {store.url}",
        "version": manifest.version,
        "parent": (manifest.build.parent or "none")[:12],
        "refs": ", ".join(f"{ref.number} ({ref.version[:12]})" for ref in refs),
        "tags": ", ".join(f"{tag} ({v[:12]})" for tag, v in list_tags(store, manifest.name).items())
        or "none",
        "format": f"{manifest.content.kind} in {manifest.content.format} shards",
        "data": manifest.base or "",
        "tokenizer": show_tokenizer(manifest),
        "packs": "" if length is None else f"of at most {length:,} tokens",
        "labels": "none" if names is None else f"{len(names)}: {', '.join(names[:20])}",
        "built": f"{manifest.build.created} by torchrelay {manifest.build.code}",
        "left out": f"{manifest.build.skipped:,} bad inputs" if manifest.build.skipped else "",
        "arguments": json.dumps(dict(manifest.build.arguments)),
    }
    return {name: fact for name, fact in facts.items() if fact}


def _column_table(manifest: Manifest) -> Table:
    table = make_table("column", "type", "shape")
    for column in manifest.content.columns:
        shape = "any" if column.shape is None else " × ".join(map(str, column.shape)) or "single"
        table.add_row(column.name, column.dtype, shape)
    return table


def split_table(manifest: Manifest) -> Table:
    """What the splits of a version hold, one row each."""
    of_tokens = ("documents", "tokens", "text", "longest document")
    of_packs = ("packs",) if manifest.content.pack_length else ()
    has_tokens = manifest.content.kind == "tokens"
    table = make_table("split", *(of_tokens if has_tokens else ("samples",)), *of_packs, "shards", "size")
    for split, entries in manifest.splits.items():
        totals = manifest.totals(split)
        cells = [f"{totals.samples:,}"]
        if has_tokens:
            cells += [f"{totals.tokens:,}", format_bytes(totals.text_bytes), f"{totals.longest:,}"]
        if of_packs:
            cells.append(f"{sum(entry.packs for entry in entries):,}")
        table.add_row(split, *cells, f"{len(entries):,}", format_bytes(totals.bytes))
    return table


def show_tokenizer(manifest: Manifest) -> str:
    """The tokenizer in one line; empty for samples."""
    record = manifest.content.tokenizer
    if record is None:
        return ""
    end = "no" if record.end_token is None else str(record.end_token)
    if record.end_text is not None:
        end += f" {record.end_text}"
    return f"{record.kind}, {record.vocabulary:,} ids, end mark {end}, stored as {manifest.token_dtype}"


def _summarise(dataset: Dataset) -> dict[str, Any]:
    manifest = dataset.manifest
    totals = {split: manifest.totals(split) for split in manifest.splits}
    return {
        "name": manifest.name,
        "ref": list_refs(dataset.store, manifest.name)[-1],
        "version": manifest.version,
        "kind": manifest.content.kind,
        "created": manifest.build.created,
        "tokens": sum(total.tokens for total in totals.values()),
        "splits": {
            split: {**asdict(total), "shards": len(manifest.splits[split])} for split, total in totals.items()
        },
    }
