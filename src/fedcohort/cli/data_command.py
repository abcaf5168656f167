"""`fedcohort data`: which datasets are here, getting one, checking them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn
from rich.table import Table

from fedcohort.data.dataset import Status, available, data_root, status
from fedcohort.data.download import get as get_dataset
from fedcohort.data.sources import SOURCES
from fedcohort.errors import UnknownName

app = typer.Typer(help="Datasets: list, get and check them.", no_args_is_help=True)
Root = Annotated[
    Path | None, typer.Option("--root", help="Data folder; default $FEDCOHORT_DATA or ~/.cache/fedcohort/data.")
]


@app.command("list")
def list_(root: Root = None) -> None:
    """What is here, where, how big; and how to get the rest."""
    table = Table("dataset", "what", "form", "size", "where")
    for found in available(root):
        by_program = found.name not in SOURCES or SOURCES[found.name].files
        absent = (
            f"fedcohort data get {found.name}" if by_program else f"by hand: fedcohort data get {found.name} tells how"
        )
        table.add_row(
            found.name, found.title, found.form or "-", _size(found), found.place if found.present else absent
        )
    _print(table)


@app.command()
def get(
    names: Annotated[list[str], typer.Argument(help="Datasets to get.", show_default=False)],
    origin: Annotated[
        str | None, typer.Option("--from", help="A mirror's address or a folder, instead of the official address.")
    ] = None,
    root: Root = None,
) -> None:
    """Download from the official source (or --from), resume, verify, and only then put in place."""
    for name in names:
        with Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            console=Console(stderr=True),
        ) as bars:
            shown: dict[str, TaskID] = {}

            def show(
                file: str, done: int, total: int | None, bars: Progress = bars, shown: dict[str, TaskID] = shown
            ) -> None:
                if file not in shown:
                    shown[file] = bars.add_task(file)
                bars.update(shown[file], completed=done, total=total)

            said = get_dataset(name, root=root, origin=origin, progress=show)
        typer.echo(said)
        if name in SOURCES and SOURCES[name].terms:
            typer.echo(f"terms: {SOURCES[name].terms}")


@app.command()
def check(
    names: Annotated[list[str] | None, typer.Argument(help="Datasets to check; default: all that are here.")] = None,
    root: Root = None,
) -> None:
    """Read every dataset that is here, whole, and compare checksums where they are known. Exit code 1 on damage."""
    folder = data_root(root)
    if names:
        own = [found.name for found in available(root)]
        for name in names:
            if name not in own:
                raise UnknownName.among("dataset", name, own)
        rows = [status(name, folder, verify=True) for name in names]
    else:
        rows = [found for found in available(root, verify=True) if found.present]
    table = Table("dataset", "form", "samples", "checksum", "verdict")
    for row in rows:
        verdict = row.problem or ("ok" if row.present else f"not here; run: fedcohort data get {row.name}")
        table.add_row(row.name, row.form or "-", row.samples or "-", row.checksum or "-", verdict)
    _print(table)
    if any(row.problem or not row.present for row in rows):
        raise typer.Exit(1)


def _size(found: Status) -> str:
    return f"{found.nbytes / 1e6:,.1f} MB" if found.nbytes else "-"


def _print(table: Table) -> None:
    """To a terminal as wide as it is; to a file or pipe wide enough that nothing is cut."""
    console = Console()
    Console(width=None if console.is_terminal else 200).print(table)
