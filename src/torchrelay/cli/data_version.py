"""`torchrelay data diff|copy|tag|gc`: compare, move, name and clear away versions."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from torchrelay.cli.data_view import DatasetArgument
from torchrelay.cli.option import DEFAULT_STORE, JsonOption, StoreOption
from torchrelay.cli.table import make_console, make_table, print_lines, print_table, progress_bar, wrap
from torchrelay.core.clock import system_clock
from torchrelay.core.units import format_bytes, parse_seconds
from torchrelay.data.dataset import list_refs, list_tags, list_versions, open_dataset, read_ref
from torchrelay.observe.rundir import list_runs, read_run
from torchrelay.store.base import Store
from torchrelay.store.open import open_store

if TYPE_CHECKING:  # its module is imported by the command that needs it
    from torchrelay.data.collect import Waste


def diff(
    old: DatasetArgument,
    new: DatasetArgument,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = False,
) -> None:
    """Compare two versions: settings, shards that are shared, samples that came and went."""
    from torchrelay.data.diff import compare

    opened = open_store(store)
    before, after = open_dataset(opened, old), open_dataset(opened, new)
    difference = compare(before, after)
    if as_json:
        typer.echo(json.dumps(asdict(difference), indent=1, default=list))
        return
    versions = [f"{one.manifest.name} {one.manifest.short_version}" for one in (before, after)]
    if versions[0] == versions[1]:
        typer.echo(f"{old} and {new} are the same version, {before.manifest.short_version}")
        return
    typer.echo(f"{versions[0]} -> {versions[1]}")
    names = ("split", "samples", "now", "added", "removed", "shards kept", "new", "gone", "new bytes")
    table = make_table(*names)
    for split in difference.splits:
        counts = (split.old_samples, split.new_samples, split.added_samples, split.removed_samples)
        shards = (split.shared_shards, split.added_shards, split.removed_shards)
        cells = ["?" if count is None else f"{count:,}" for count in (*counts, *shards)]
        table.add_row(split.split, *cells, format_bytes(split.added_bytes))
    print_table(table)
    print_lines(make_console(), {s.name: f"{_short(s.old)} -> {_short(s.new)}" for s in difference.settings})
    if difference.leaked_samples:
        typer.echo(
            f"warning: {difference.leaked_samples:,} samples that the old version keeps out of training are\n"
            "in the new one's train split; results on the old validation split mean nothing for\n"
            "a model trained on the new one"
        )


def copy(
    dataset: DatasetArgument,
    to: Annotated[str, typer.Option("--to", metavar="URL", help="Store to copy into.")],
    name: Annotated[str | None, typer.Option(help="Name there. Default: the same.")] = None,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Copy a version to another store; every shard is checked on the way."""
    from torchrelay.data.copy import copy_dataset

    source, target = open_dataset(open_store(store), dataset), open_store(to)
    called = name or source.manifest.name
    with progress_bar() as report:
        copied = copy_dataset(
            source, target, called, progress=lambda done, total: report("copying", done, total)
        )
    known = f"ref {copied.published.number}" + ("" if copied.published.is_new else ", there already")
    facts = {
        "version": f"{source.manifest.short_version} ({known})",
        "where": f"{target.url}/datasets/{called}",
        "copied": format_bytes(copied.copied_bytes),
        "was there": format_bytes(copied.present_bytes),
    }
    print_lines(make_console(), facts)


def tag(
    dataset: DatasetArgument,
    tag: Annotated[str, typer.Argument(help="The tag, such as v1 or paper.")],
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Give a version a name that never moves."""
    from torchrelay.data.tag import create_tag

    opened = open_store(store)
    manifest = open_dataset(opened, dataset).manifest
    is_new = create_tag(opened, manifest, tag)
    typer.echo(f"{manifest.name}@{tag} is version {manifest.short_version}{'' if is_new else ', as before'}")


def collect(
    name: Annotated[str, typer.Argument(help="Dataset.")],
    keep_last: Annotated[
        int | None, typer.Option(min=1, help="Refs that stay, the newest. Default: all.")
    ] = None,
    grace: Annotated[str, typer.Option(help="Younger files that nothing needs stay.")] = "24h",
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete; without it only say what would go.")
    ] = False,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = False,
) -> None:
    """Delete what no version needs: remains of failed builds, and versions of old refs if asked.

    Tagged versions and those that a run of this store was trained on always stay. Not while a build
    of the same dataset is running.
    """
    from torchrelay.data.collect import delete_waste, find_waste

    opened = open_store(store)
    trained = _trained_versions(opened)
    waste = find_waste(
        opened,
        name,
        keep_last=keep_last,
        protected=trained,
        now_s=system_clock(),
        grace_s=parse_seconds(grace),
    )
    if as_json:
        typer.echo(json.dumps(asdict(waste), indent=1))
    else:
        refs = ", ".join(map(str, waste.refs)) or "none"
        facts = {
            "refs": refs,
            "versions": ", ".join(version[:12] for version in waste.versions) or "none",
            "files": f"{len(waste.files):,}, {format_bytes(waste.bytes)}",
            "too young": f"{waste.young:,} files younger than {grace}",
            "kept": wrap("; ".join(_say_kept(opened, name, waste, trained)) or "none"),
        }
        print_lines(make_console(), facts)
    if delete:
        with progress_bar() as report:
            delete_waste(opened, name, waste, progress=lambda done, total: report("deleting", done, total))
    if not as_json:
        typer.echo(_say_done(len(waste.refs) + len(waste.files), delete=delete))


def _say_done(count: int, *, delete: bool) -> str:
    if not count:
        return "nothing to delete"
    files = "1 file" if count == 1 else f"{count:,} files"
    return f"deleted {files}" if delete else "nothing is deleted yet; --delete does it"


def _trained_versions(store: Store) -> dict[str, list[str]]:
    """The runs of the store by the version that they were trained on."""
    runs: dict[str, list[str]] = {}
    for run in list_runs(store):
        runs.setdefault(read_run(store, run).dataset_version, []).append(run)
    return runs


def _say_kept(store: Store, name: str, waste: "Waste", trained: dict[str, list[str]]) -> Iterator[str]:
    """Of every version that stays, what keeps it."""
    refs = [read_ref(store, name, number) for number in list_refs(store, name) if number not in waste.refs]
    tags = list_tags(store, name)
    for version in list_versions(store, name):
        keepers = [f"ref {ref.number}" for ref in refs if ref.version == version]
        keepers += [f"tag {tag}" for tag, tagged in tags.items() if tagged == version]
        keepers += [f"run {run}" for run in trained.get(version, ())]
        if version not in waste.versions:
            yield f"{version[:12]} by {', '.join(keepers)}"


def _short(value: object) -> str:
    text = json.dumps(value, default=list)
    return text if len(text) <= 42 else f"{text[:39]}..."
