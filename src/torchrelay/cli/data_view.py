"""`torchrelay data list|show|verify`: what there is, and whether it is sound."""

import json
from collections.abc import Iterable
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.table import Table

from torchrelay.cli.option import DEFAULT_STORE, JsonOption, StoreOption
from torchrelay.cli.table import WIDTH, make_console, make_table, print_lines, print_table, progress_bar, wrap
from torchrelay.core.errors import DataError, NotFoundError
from torchrelay.core.units import format_bytes, format_count
from torchrelay.data.dataset import Dataset, list_datasets, list_refs, list_tags, open_dataset, read_ref
from torchrelay.data.manifest import TRAIN, Manifest
from torchrelay.data.manifest_json import write_manifest
from torchrelay.store.base import Store
from torchrelay.store.open import open_store

DatasetArgument = Annotated[
    str, typer.Argument(metavar="NAME[@REF]", help="Dataset, at its newest ref, a ref, a tag or a version.")
]


def list_(store: StoreOption = DEFAULT_STORE, as_json: JsonOption = False) -> None:
    """List the datasets of a store, each at its newest ref; those that are damaged say so."""
    opened = open_store(store)
    rows = [_summarise(opened, name) for name in list_datasets(opened)]
    if as_json:
        typer.echo(json.dumps(rows, indent=1))
        return
    if not rows:
        typer.echo(f"no dataset in {opened.url}; torchrelay data build makes one")
        return
    print_table(_list_table(row for row in rows if not row["error"]))
    for row in rows:
        if row["error"]:
            typer.echo(f"{row['name']} is damaged: {row['error']}")


def _list_table(rows: Iterable[dict[str, Any]]) -> Table:
    table = make_table("name", "ref", "version", "kind", "samples", "tokens", "held out", "size", "created")
    for row in rows:
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
    return table


def show(dataset: DatasetArgument, store: StoreOption = DEFAULT_STORE, as_json: JsonOption = False) -> None:
    """Show what a version of a dataset consists of and how it was built."""
    opened = open_dataset(open_store(store), dataset)
    manifest = opened.manifest
    if as_json:
        typer.echo(write_manifest(manifest).decode(), nl=False)
        return
    print_table(split_table(manifest))
    if manifest.content.columns:
        typer.echo()
        print_table(_column_table(manifest))
    print_lines(make_console(), _facts(opened))


def verify(dataset: DatasetArgument, store: StoreOption = DEFAULT_STORE, as_json: JsonOption = False) -> None:
    """Read every byte of a version and compare it with its manifest; exit code 78 when something is wrong."""
    from torchrelay.data.shard_bytes import ADOPT_AGAIN
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
        count = "1 problem" if len(findings) == 1 else f"{len(findings)} problems"
        rows = "\n".join(f"  {_break_lines(f'{finding.key}: {finding.problem}')}" for finding in findings)
        raise DataError(
            f"{manifest.name} version {manifest.short_version} has {count}:\n{rows}",
            hint=_BUILD_AGAIN if manifest.base is None else ADOPT_AGAIN,
        )
    shards = sum(len(entries) for entries in manifest.splits.values())
    typer.echo(f"ok {manifest.name} version {manifest.short_version}: {shards} shards are as they were built")


_BUILD_AGAIN = "build the dataset again from the same input; that writes the same version anew"


def _break_lines(row: str) -> str:
    """A finding in one line, or with the hashes it tells in lines of their own."""
    if len(row) + 2 <= WIDTH:
        return row
    return row.replace(": ", ":\n    ", 1).replace(", the manifest says ", ",\n    the manifest says ")


def _facts(dataset: Dataset) -> dict[str, str]:
    manifest, store = dataset.manifest, dataset.store
    refs = [read_ref(store, manifest.name, number) for number in list_refs(store, manifest.name)[-8:]]
    tags = list_tags(store, manifest.name)
    names, length = manifest.content.label_names, manifest.content.pack_length
    facts = {
        "dataset": f"{manifest.name} in {store.url}",
        "version": manifest.version,
        "parent": (manifest.build.parent or "none")[:12],
        "refs": wrap(", ".join(f"{ref.number} ({ref.version[:12]})" for ref in refs)),
        "tags": wrap(", ".join(f"{tag} ({version[:12]})" for tag, version in tags.items()) or "none"),
        "format": f"{manifest.content.kind} in {manifest.content.format} shards",
        "data": manifest.base or "",
        "tokenizer": show_tokenizer(manifest),
        "packs": "" if length is None else f"of at most {length:,} tokens",
        "labels": "none" if names is None else wrap(f"{len(names)}: {', '.join(names[:20])}"),
        "built": f"{manifest.build.created} by torchrelay {manifest.build.code}",
        "left out": f"{manifest.build.skipped:,} bad inputs" if manifest.build.skipped else "",
        "arguments": _wrap_json(dict(manifest.build.arguments)),
    }
    return {name: fact for name, fact in facts.items() if fact}


def _wrap_json(tree: dict[str, Any]) -> str:
    """In lines that end between entries, never between a key and its value."""
    return wrap(json.dumps(tree).replace('": ', '":\0')).replace("\0", " ")


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


def _summarise(store: Store, name: str) -> dict[str, Any]:
    """What `list` tells of a dataset; of one that cannot be read only why."""
    try:
        manifest = open_dataset(store, name).manifest
    except (DataError, NotFoundError) as error:
        return {"name": name, "error": error.message.removeprefix(f"{store.url}/")}
    totals = {split: manifest.totals(split) for split in manifest.splits}
    return {
        "name": manifest.name,
        "ref": list_refs(store, manifest.name)[-1],
        "version": manifest.version,
        "kind": manifest.content.kind,
        "created": manifest.build.created,
        "tokens": sum(total.tokens for total in totals.values()),
        "splits": {
            split: {**asdict(total), "shards": len(manifest.splits[split])} for split, total in totals.items()
        },
        "error": None,
    }
