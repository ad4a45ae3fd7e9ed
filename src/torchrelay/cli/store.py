"""`torchrelay store`: find out whether a place can hold data and runs, and what is missing."""

import json
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from torchrelay.cli.option import JsonOption
from torchrelay.cli.table import WIDTH
from torchrelay.core.errors import StoreError
from torchrelay.core.units import format_bytes, format_seconds
from torchrelay.store.probe import Finding, check_store

app = typer.Typer(no_args_is_help=True, help="Look at the places where data and runs are kept.")


@app.callback()
def _group() -> None:
    """Keeps `check` a command of its own while it is the only one."""


@app.command()
def check(
    url: Annotated[str, typer.Argument(metavar="URL", help="s3://bucket/prefix, or any other store.")],
    read_only: Annotated[
        bool,
        typer.Option("--read-only", help="Only list and read what is there, for a key that may no more."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Try everything torchrelay will want to do there; exit code 78 when something does not work."""
    findings = list(check_store(url, read_only=read_only))
    bad = [finding for finding in findings if not finding.works]
    if as_json:
        rows = [{**finding._asdict(), "bytes_per_s": finding.bytes_per_s} for finding in findings]
        typer.echo(json.dumps({"url": url, "works": not bad, "checks": rows}, indent=1))
        if bad:
            raise typer.Exit(StoreError.exit_code)
        return
    _print_table(findings)
    if bad:
        raise StoreError("\n".join(map(_problem, bad)), hint=bad[0].hint)
    typer.echo(f"ok {url} can be {'read' if read_only else 'used for data and runs'}")


def _print_table(findings: list[Finding]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("check", no_wrap=True)
    for name in ("works", "time", "speed"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("permission", no_wrap=True)
    table.add_column("needed for")
    for finding in findings:
        table.add_row(*_row(finding))
    Console(markup=False, highlight=False, width=None if _is_terminal() else WIDTH).print(table)


def _row(finding: Finding) -> tuple[Any, ...]:
    speed = "" if finding.bytes_per_s is None else f"{format_bytes(finding.bytes_per_s)}/s"
    took = f"{finding.seconds * 1000:.0f} ms" if finding.seconds < 0.9995 else format_seconds(finding.seconds)
    works = "yes" if finding.works else "NO"
    return finding.check, works, took, speed, finding.permission, finding.needed_for


def _problem(finding: Finding) -> str:
    missing = ""
    if "AccessDenied" in finding.problem and finding.permission:
        missing = f"; {finding.permission} is missing, needed for {finding.needed_for}"
    return f"{finding.check}: {finding.problem}{missing}"


def _is_terminal() -> bool:
    return Console().is_terminal
