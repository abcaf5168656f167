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

app = typer.Typer(help="List, download and check datasets.", no_args_is_help=True)
Root = Annotated[
    Path | None, typer.Option("--root", help="Data folder.", show_default="$FEDCOHORT_DATA, or ~/.cache/fedcohort/data")
]


@app.command("list")
def list_(root: Root = None) -> None:
    """List the datasets: which are here, where and how large, and how to get the others."""
    table = Table("dataset", "what", "form", "size", "where")
    for found in available(root):
        by_program = found.name not in SOURCES or SOURCES[found.name].files
        absent = (
            f"fedcohort data get {found.name}"
            if by_program
            else f"by hand: `fedcohort data get {found.name}` explains how"
        )
        table.add_row(
            found.name, found.title, found.form or "-", _size(found), found.place if found.present else absent
        )
    _print(table)


@app.command()
def get(
    names: Annotated[list[str], typer.Argument(help="Datasets to download.", show_default=False)],
    origin: Annotated[
        str | None, typer.Option("--from", help="Address of a mirror, or a folder, instead of the official source.")
    ] = None,
    root: Root = None,
) -> None:
    """Download datasets, resuming what was interrupted; each is verified before it is installed."""
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
    names: Annotated[list[str] | None, typer.Argument(help="Datasets to check (default: all that are here).")] = None,
    root: Root = None,
) -> None:
    """Read datasets completely and compare checksums where they are known. Exit code 1 if anything is wrong.

    NAMES are the datasets to check; omit to check all that are here.
    """
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
    """As wide as the terminal; in a file or pipe, wide enough that nothing is cut."""
    console = Console()
    Console(width=None if console.is_terminal else 200).print(table)
