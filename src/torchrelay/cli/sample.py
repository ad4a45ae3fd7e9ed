"""`torchrelay sample RUN --prompt "def "`."""

import json
from dataclasses import asdict

import typer

from torchrelay.cli.option import DEFAULT_STORE, JsonOption, RunArgument, StoreOption
from torchrelay.store.open import open_store


def command(
    run: RunArgument,
    prompt: str = typer.Option("", help="Text to continue."),
    num_tokens: int = typer.Option(200, "--tokens", min=1, help="How many tokens to write at most."),
    temperature: float = typer.Option(0.8, min=0.0, help="0 always takes the likeliest token."),
    top_k: int | None = typer.Option(None, min=1, help="Choose among so many likeliest tokens."),
    seed: int = typer.Option(1, min=0, help="Another seed writes another text."),
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = False,
) -> None:
    """Uses the newest good checkpoint, on the CPU."""
    from torchrelay.train.sample import SampleRequest, write_sample  # torch is needed only here

    request = SampleRequest(
        prompt=prompt, num_tokens=num_tokens, temperature=temperature, top_k=top_k, seed=seed
    )
    written = write_sample(open_store(store), run, request)
    typer.echo(json.dumps(asdict(written)) if as_json else written.text)
