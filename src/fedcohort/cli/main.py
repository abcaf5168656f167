"""The command line. Every mistake is one readable line and exit code 2, never a traceback."""

from __future__ import annotations

import sys
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console

from fedcohort import __version__
from fedcohort.cli import compare_command as compare
from fedcohort.cli import dashboard_command as dashboard
from fedcohort.cli import data_command as data
from fedcohort.cli import demo_command as demo
from fedcohort.cli import export_command as export
from fedcohort.cli import flower_command as flower
from fedcohort.cli import journal_command as journal
from fedcohort.cli import list_command as catalogue
from fedcohort.cli import report_command as report
from fedcohort.cli import reproduce_command as reproduce
from fedcohort.cli import run_command as runs
from fedcohort.cli import skew_command as skew
from fedcohort.cli import sweep_command as sweep
from fedcohort.cli import world_command as world
from fedcohort.cli.progress import plain
from fedcohort.errors import FedcohortError

INTERRUPTED = 130  # what typer makes of Ctrl-C
_USAGE: type[Exception] = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")

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
app.command("report")(report.report_command)
app.command("reproduce")(reproduce.reproduce_command)
app.command("dashboard")(dashboard.dashboard_command)
app.command("export")(export.export_command)
app.command("verify")(journal.verify_command)
app.add_typer(journal.app, name="journal", help="The journal of a run.")
app.add_typer(data.app, name="data", help="Datasets: list, get, check.")
app.add_typer(flower.app, name="flower")
app.add_typer(world.app, name="world", help="Worlds: list them, see one.")


def main() -> None:
    """Entry point of the `fedcohort` command."""
    try:
        code = app(prog_name="fedcohort", standalone_mode=False)
    except FedcohortError as error:
        _refuse(str(error))
    except _USAGE as error:
        _refuse_usage(error)
    except OSError as error:
        remedy = "check the path, its permissions and the space that is left"
        _refuse(f"{error.filename or 'the system'}: {(error.strerror or str(error)).lower()}; {remedy}.")
    except MemoryError as error:
        _refuse(f"memory: {str(error).rstrip('.') or 'there is not enough of it'}; ask for less at once.")
    else:
        if code == INTERRUPTED:
            Console(stderr=True).print("stopped; a run that was begun goes on with `fedcohort resume FOLDER`")
        sys.exit(code if isinstance(code, int) else 0)


def _refuse_usage(error: Any) -> NoReturn:
    """A command or an option that does not exist, a word in the place of a number: what typer finds by itself."""
    text = str(error.format_message()).strip().rstrip(".")
    if not text:  # no command at all: the help has been shown
        sys.exit(error.exit_code)
    command = error.ctx.command_path if getattr(error, "ctx", None) else "fedcohort"
    _refuse(f"{command}: {' '.join((text[0].lower() + text[1:]).split())}; see `{command} --help`.")


def _refuse(text: str) -> NoReturn:
    Console(stderr=True, soft_wrap=True, highlight=False).print(f"[bold red]error:[/] {plain(text)}")
    sys.exit(2)


if __name__ == "__main__":
    main()
