"""The `fedcohort` command. Every mistake is one readable line and exit code 2, not a traceback."""

from __future__ import annotations

import os
import sys
import warnings
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console

from fedcohort import __version__
from fedcohort.cli.command_table import CommandGroup
from fedcohort.cli.own_code import own_mistake
from fedcohort.cli.progress import INTERRUPTED, plain, tell_warning, told
from fedcohort.errors import FedcohortError

_USAGE: type[Exception] = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")

app = typer.Typer(
    cls=CommandGroup,
    help="fedcohort chooses who trains next: client selection for federated learning.",
    no_args_is_help=True,
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
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    del version
    if os.getcwd() not in sys.path:  # modules of your own are found as by `python -m`, after those that are installed
        sys.path.append(os.getcwd())


def main() -> None:
    """Entry point of the `fedcohort` command."""
    told.clear()
    warnings.showwarning = tell_warning  # type: ignore[assignment]
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
    except Exception as error:
        said = own_mistake(error)
        if said is None:
            raise
        _refuse(said)
    else:
        if code == INTERRUPTED:
            Console(stderr=True).print("stopped")
        sys.exit(code if isinstance(code, int) else 0)


def _refuse_usage(error: Any) -> NoReturn:
    """A command or an option that does not exist, a word instead of a number: what typer finds by itself."""
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
