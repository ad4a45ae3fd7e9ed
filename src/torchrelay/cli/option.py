"""Options that several commands share."""

from typing import Annotated

import typer

from torchrelay.store.open import DEFAULT_STORE

StoreOption = Annotated[str, typer.Option("--store", help="URL of the store, or a folder.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
RunArgument = Annotated[str, typer.Argument(help="The run's id.")]

__all__ = ["DEFAULT_STORE", "JsonOption", "RunArgument", "StoreOption"]
