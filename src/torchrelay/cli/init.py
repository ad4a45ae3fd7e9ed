"""`torchrelay init`: write a commented recipe to start from, and say what to type next."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from torchrelay.core.errors import RecipeError
from torchrelay.recipe.template import TEMPLATES, StartKind, fill


def command(
    path: Annotated[Path, typer.Argument(help="The recipe to write.")] = Path("recipe.yaml"),
    kind: Annotated[StartKind, typer.Option(help="What you start from.")] = StartKind.TEXT,
    force: Annotated[bool, typer.Option("--force", help="Overwrite files that are there.")] = False,
) -> None:
    """The kind python writes a small model and data source next to it."""
    template = fill(TEMPLATES[kind], path.name)
    files = {path: template.recipe}
    files |= {path.parent / name: text for name, text in template.modules.items()}
    _refuse_overwriting([] if force else list(files))
    for target, text in files.items():
        _write(target, text)
        typer.echo(f"wrote {target}")
    typer.echo("\nnext:")
    if path.parent != Path():
        typer.echo(f"  cd {shlex.quote(str(path.parent))}")
    for line in template.commands:
        typer.echo(f"  {line}")


def _refuse_overwriting(targets: list[Path]) -> None:
    taken = [str(target) for target in targets if target.exists()]
    if taken:
        raise RecipeError(
            f"{' and '.join(taken)} would be overwritten",
            hint="choose another path, or overwrite with --force",
        )


def _write(target: Path, text: str) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    except OSError as error:
        raise RecipeError(
            f"cannot write {target}: {error.strerror}", hint="choose a path in a folder that you may write in"
        ) from error
