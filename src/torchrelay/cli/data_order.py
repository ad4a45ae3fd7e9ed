"""`torchrelay data order`: which samples the slots of a run are."""

import json
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from torchrelay.cli.data_view import DatasetArgument
from torchrelay.cli.option import DEFAULT_STORE, JsonOption, StoreOption
from torchrelay.cli.table import make_table, print_table
from torchrelay.core.errors import RecipeError
from torchrelay.data.dataset import check_has_split, open_dataset
from torchrelay.data.manifest import Manifest
from torchrelay.store.open import open_store

if TYPE_CHECKING:  # pydantic is imported by the commands that need it; the others start fast
    from torchrelay.recipe.data_schema import DataSection


class ReadingChoice(StrEnum):
    """What a sample is; see `data.reading` of the recipe."""

    AUTO = "auto"
    PACKED = "packed"
    PACKS = "packs"
    DOCUMENTS = "documents"
    SAMPLES = "samples"


def order(
    dataset: DatasetArgument,
    first: Annotated[int, typer.Option("--from", min=0, help="First slot.")] = 0,
    stop: Annotated[int, typer.Option("--to", min=0, help="Slot after the last.")] = 10,
    seed: Annotated[int, typer.Option(min=0, help="run.seed of the recipe.")] = 1,
    split: Annotated[str, typer.Option(help="train, validation or test.")] = "train",
    reading: Annotated[ReadingChoice, typer.Option(help="What a sample is.")] = ReadingChoice.AUTO,
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
    check_has_split(opened.manifest, split)
    rows = _trace_rows(section, opened.manifest, split, seed, range(first, stop))
    if as_json:
        typer.echo(json.dumps(rows, indent=1))
        return
    table = make_table("slot", "epoch", "lane", "window", "shard", "index", "sample id")
    for row in rows:
        table.add_row(*(f"{value:,}" for value in row.values()))
    print_table(table)


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
