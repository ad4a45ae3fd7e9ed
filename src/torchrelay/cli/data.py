"""`torchrelay data`: build datasets, look at them, verify them."""

import typer

from torchrelay.cli import data_adopt, data_build, data_order, data_version, data_view

app = typer.Typer(no_args_is_help=True, help="Build datasets, look at them, verify them.")
app.command()(data_build.build)
app.command()(data_adopt.adopt)
app.command("list")(data_view.list_)
app.command()(data_view.show)
app.command()(data_view.verify)
app.command()(data_order.order)
app.command()(data_version.diff)
app.command()(data_version.copy)
app.command()(data_version.tag)
app.command("gc")(data_version.collect)
