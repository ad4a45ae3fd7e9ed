"""`torchrelay recipe`: check a recipe, and print what a recipe can say."""

from typing import Annotated

import typer

from torchrelay.recipe.data_schema import DataSection
from torchrelay.recipe.load import load_recipe, recipe_hash
from torchrelay.recipe.model_schema import ModelSection
from torchrelay.recipe.reference import render_reference
from torchrelay.recipe.schema import Recipe, TrainSection

app = typer.Typer(no_args_is_help=True, help="Check a recipe; list what a recipe can say.")

_PRESETS = """\
## Presets of model.decoder

Named sizes for `model.decoder.preset`. An empty cell is filled in as the key's meaning above says;
keys given in the recipe win.
"""


@app.command()
def check(
    recipe: Annotated[str, typer.Argument(help="The recipe's file.")],
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Lay a value over the recipe.")
    ] = None,
) -> None:
    """Read a recipe and report every problem at once; start nothing."""
    loaded = load_recipe(recipe, settings or [])
    typer.echo(f"ok {recipe_hash(loaded)}")
    for name, text in _summary(loaded):
        typer.echo(f"  {name:<11} {text}")


@app.command()
def reference() -> None:
    """Print every section and key with type, default and meaning, as Markdown."""
    typer.echo(reference_page(), nl=False)


def reference_page() -> str:
    """The schema's page and the decoder's presets: what `docs/reference/recipe.md` holds."""
    from torchrelay.model.presets import PRESETS  # not needed to check a recipe

    columns = (
        "architecture",
        "layers",
        "width",
        "heads",
        "kv_heads",
        "feed_forward",
        "vocabulary",
        "context",
    )
    rows = [["preset", *columns], ["---"] * (len(columns) + 1)]
    for name, preset in PRESETS.items():
        values = [getattr(preset, column) for column in columns]
        rows.append([f"`{name}`", *("" if value is None else str(value) for value in values)])
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return f"{render_reference()}\n{_PRESETS}\n{table}\n"


def _summary(recipe: Recipe) -> list[tuple[str, str]]:
    parallel = recipe.parallel
    return [
        ("run", f"{recipe.run.name} in {recipe.run.store}, seed {recipe.run.seed}"),
        ("model", _model(recipe.model)),
        ("data", _data(recipe.data)),
        ("train", _train(recipe.train)),
        ("parallel", f"{parallel.engine}, replicate {parallel.replicate} × shard {parallel.shard}"),
        ("checkpoint", f"every {recipe.checkpoint.every}, the last {recipe.checkpoint.keep_last} kept"),
    ]


def _model(model: ModelSection) -> str:
    if model.decoder is not None:
        given = model.decoder.model_dump(exclude_unset=True)
        return "decoder " + ", ".join(f"{key} {value}" for key, value in given.items())
    if model.huggingface is not None:
        shape = (
            model.huggingface.path or f"configuration {(model.huggingface.config or {}).get('model_type')}"
        )
        return f"huggingface {shape}, {model.huggingface.task}"
    return f"python {model.python}" if model.python else f"plugin {model.plugin}"


def _data(data: DataSection) -> str:
    if data.source is not None:
        return f"source {data.source}"
    return f"dataset {data.dataset}, {data.reading}, {data.sequence_length} tokens a sample"


def _train(train: TrainSection) -> str:
    lengths = [(key, getattr(train, key)) for key in ("steps", "epochs", "tokens")]
    length = " ".join(f"{value} {key}" for key, value in lengths if value is not None)
    batch = f"{train.global_batch} samples a step"
    return f"{length}, {batch}, {train.precision}, {train.optimizer.name} lr {train.optimizer.lr:g}"
