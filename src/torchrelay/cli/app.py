"""The command line: parse, call, print. Only the module of the command that runs is imported."""

import importlib
import sys
from collections.abc import Callable, Sequence

import typer

from torchrelay.core.errors import ExitCode, RelayError

_COMMANDS = {
    "init": "Write a commented recipe to start from.",
    "data": "Build, list, show and verify datasets.",
    "store": "Find out whether a place can hold data and runs.",
    "recipe": "Check a recipe, or print the reference of all its keys.",
    "train": "Train a recipe; goes on where an earlier start of the run ended.",
    "status": "Where a run stands.",
    "journal": "The records of a run.",
    "checkpoint": "List, show and verify a run's checkpoints.",
    "sample": "Let a run's model write text.",
}
"""Every command is `torchrelay.cli.<name>` and holds `app` (a group) or `command` (a function)."""


def main() -> None:
    """Entry point of the `torchrelay` program."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code; errors go to stderr with their hint."""
    chosen = next((word for word in arguments if not word.startswith("-")), None)
    try:
        code = build_app(chosen)(list(arguments), prog_name="torchrelay", standalone_mode=False)
        return int(code or 0)
    except RelayError as error:
        return _fail(str(error), error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        return _fail("interrupted", 130)
    except typer.Exit as stop:
        return stop.exit_code
    except SystemExit:  # how click and rich end where the reader of our output (head) left
        return ExitCode.DONE
    except Exception as error:
        if not hasattr(error, "format_message"):  # not a usage error of the command line
            raise
        return _fail(f"{error.format_message()}\n\nhint: {_usage_hint(chosen)}", 2)


def _usage_hint(chosen: str | None) -> str:
    if chosen in _COMMANDS:
        return f"torchrelay {chosen} --help shows how it is used"
    return f"commands are {', '.join(_COMMANDS)}"


def build_app(chosen: str | None) -> typer.Typer:
    """The program with the chosen command in full and the others by name and one line of help."""
    app = typer.Typer(
        name="torchrelay",
        help="Train a PyTorch model from one recipe, and keep training when machines fail.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.callback()(_options)
    for name, text in _COMMANDS.items():
        if name != chosen:
            app.command(name, help=text)(_other)
            continue
        module = importlib.import_module(f"torchrelay.cli.{name}")
        group: typer.Typer | None = getattr(module, "app", None)
        if group is not None:
            app.add_typer(group, name=name, help=text)
        else:
            command: Callable[..., None] = module.command
            app.command(name, help=f"{text} {command.__doc__ or ''}")(command)
    return app


def _print_version(wanted: bool) -> None:  # noqa: FBT001 - signature of typer's callbacks
    if wanted:
        from torchrelay import __version__

        typer.echo(f"torchrelay {__version__}")
        raise typer.Exit


def _options(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version and stop."
    ),
) -> None:
    """Stands for the options that go before a command."""


def _other() -> None:
    """Stands for a command that was not asked for."""


def _fail(text: str, code: int) -> int:
    typer.secho(f"error: {text}", err=True, fg=typer.colors.RED if sys.stderr.isatty() else None)
    return code
