"""The command line. Every mistake is one readable line and exit code 2, never a traceback."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.console import Console

from fedcohort import __version__
from fedcohort.cli import catalogue, compare, data, demo, flower, journal, runs, skew, sweep, world
from fedcohort.errors import FedcohortError

app = typer.Typer(
    help="fedcohort chooses who trains next: client selection for federated learning.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fedcohort {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    del version


app.command("demo")(demo.demo)
app.command("run")(runs.run_command)
app.command("resume")(runs.resume_command)
app.command("list")(catalogue.list_command)
app.command("show")(catalogue.show_command)
app.command("skew")(skew.skew)
app.command("sweep")(sweep.sweep_command)
app.command("compare")(compare.compare_command)
app.command("verify")(journal.verify_command)
app.add_typer(journal.app, name="journal", help="The journal of a run.")
app.add_typer(data.app, name="data", help="Datasets: list, get, check.")
app.add_typer(flower.app, name="flower")
app.add_typer(world.app, name="world", help="Worlds: list them, see one.")


def main() -> None:
    """Entry point of the `fedcohort` command."""
    try:
        app()
    except FedcohortError as error:
        Console(stderr=True, soft_wrap=True, highlight=False).print(f"[bold red]error:[/] {_plain(str(error))}")
        sys.exit(2)
    except KeyboardInterrupt:
        Console(stderr=True).print("stopped; nothing is lost: `fedcohort resume FOLDER` goes on")
        sys.exit(130)


def _plain(text: str) -> str:
    return text.replace("[", r"\[")


if __name__ == "__main__":
    main()
