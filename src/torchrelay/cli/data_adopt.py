"""`torchrelay data adopt`: a dataset out of data that other libraries wrote, which stays where it is."""

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from torchrelay.cli.data_view import show_tokenizer, split_table
from torchrelay.cli.option import DEFAULT_STORE, StoreOption
from torchrelay.cli.table import make_console, print_lines, print_table, progress_bar, wrap
from torchrelay.core.errors import RecipeError
from torchrelay.core.units import parse_fraction
from torchrelay.data.manifest import SPLITS
from torchrelay.store.open import open_store

if TYPE_CHECKING:  # numpy is imported by the commands that need it; the others start fast
    from torchrelay.data.adopt.adoption import AdoptResult


class LayoutChoice(StrEnum):
    """How the data lies there."""

    AUTO = "auto"
    MDS = "mds"
    WEBDATASET = "webdataset"
    PARQUET = "parquet"
    MEGATRON = "megatron"
    LITDATA = "litdata"


def adopt(
    name: Annotated[str, typer.Argument(help="What the dataset is called.")],
    url: Annotated[
        str,
        typer.Argument(
            help="Folder, file or pattern: s3://bucket/data/part-{000..099}.tar, 'data/*.parquet'."
        ),
    ],
    kind: Annotated[LayoutChoice, typer.Option(help="Layout of the data.")] = LayoutChoice.AUTO,
    split: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=FOLDER", help="Folder of a split; else train, val, validation, test."),
    ] = None,
    validation: Annotated[
        str | None,
        typer.Option(metavar="SHARE", help="Share of whole shards set aside, chosen by their hash."),
    ] = None,
    vocabulary: Annotated[
        int | None, typer.Option(min=1, help="Number of token ids; else one more than the highest.")
    ] = None,
    end_token: Annotated[int | None, typer.Option(min=0, help="Id of the mark after a document.")] = None,
    tokenizer: Annotated[
        str | None, typer.Option(metavar="PATH", help="The tokenizer.json that made the tokens.")
    ] = None,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Train from data that lies somewhere, without copying or changing it.

    Takes MosaicML MDS and LitData folders, WebDataset tars, Parquet files and Megatron's .bin with .idx.
    All of it is read once and hashed; only a manifest is written. The data must stay where it is. To
    train on the text of a Parquet file, make tokens of it with torchrelay data build.
    """
    from torchrelay.data.adopt.adoption import AdoptRequest, adopt_dataset

    request = AdoptRequest(
        url=url,
        layout=kind.value,
        split_folders=_split_folders(split or ()),
        validation=None if validation is None else _share(validation),
        vocabulary=vocabulary,
        end_token=end_token,
        tokenizer=tokenizer,
    )
    with progress_bar() as report:
        result = adopt_dataset(open_store(store), name, request, progress=report)
    _print_result(result, store)


def _split_folders(words: Sequence[str]) -> dict[str, str]:
    """`train=FOLDER` as a dict."""
    folders: dict[str, str] = {}
    for word in words:
        split, separator, folder = word.partition("=")
        if not separator or not folder.strip("/") or split not in SPLITS or split in folders:
            raise RecipeError(
                f"--split {word}: write {', '.join(f'{split}=FOLDER' for split in SPLITS)}, each once"
            )
        folders[split] = folder.strip("/")
    return folders


def _share(text: str) -> float:
    try:
        share = parse_fraction(text)
    except ValueError as error:
        raise RecipeError(f"--validation: {error}") from error
    if not 0 < share < 1:
        raise RecipeError(f"--validation {text} leaves one split empty")
    return share


def _print_result(result: "AdoptResult", store: str) -> None:
    manifest = result.manifest
    print_table(split_table(manifest))
    known = f"ref {result.ref}" if result.is_new else f"exists already as ref {result.ref}, nothing new"
    at = "" if store == DEFAULT_STORE else f" --store {store}"
    lines = {
        "version": f"{manifest.short_version} ({known})",
        "where": f"{open_store(store).url}/datasets/{manifest.name}",
        "data": f"{manifest.base} (read from there, so keep it)",
        "format": manifest.content.format,
        "columns": wrap(", ".join(f"{column.name} {column.dtype}" for column in manifest.content.columns)),
        "tokenizer": show_tokenizer(manifest),
        "left out": f"{manifest.build.skipped:,} files or documents" if manifest.build.skipped else "",
        "next": f"torchrelay data show {manifest.name}{at}; in a recipe: data.dataset: {manifest.name}",
    }
    print_lines(make_console(), {name: line for name, line in lines.items() if line})
