"""`fedcohort export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedcohort.cli.options import ToMLflow, ToTensorBoard
from fedcohort.errors import BadParameter, check
from fedcohort.experiment.runs import read, read_model
from fedcohort.experiment.store import find
from fedcohort.report.export.writers import Writers
from fedcohort.storage.journal_reader import ended
from fedcohort.storage.run_folder import RunFolder

TABLES = "rounds, evaluations, outcomes and clients"


def export_command(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders of runs.")],
    torch: Annotated[Path | None, typer.Option(help="Write the model of one run as a torch state_dict (.pt).")] = None,
    npz: Annotated[Path | None, typer.Option(help="Write the model of one run as arrays by name (.npz).")] = None,
    csv: Annotated[Path | None, typer.Option(help=f"Write {TABLES} as CSV files to this folder.")] = None,
    parquet: Annotated[Path | None, typer.Option(help="The same as parquet files (extra: parquet).")] = None,
    tensorboard: ToTensorBoard = None,
    mlflow: ToMLflow = None,
) -> None:
    """Export the trained model of a run, or what was measured in runs. RUNS are run folders, or folders that hold runs.

    Rounds that were exported to TensorBoard or MLflow before are not written twice.
    """
    if all(place is None for place in (torch, npz, csv, parquet, tensorboard, mlflow)):
        remedy = "add --torch model.pt, --npz model.npz, --csv FOLDER, --parquet FOLDER, --tensorboard or --mlflow"
        raise BadParameter("export", "no destination was given", remedy)
    console = Console(highlight=False, soft_wrap=True)
    folders = list(find(runs))
    waiting = sum(not _finished(RunFolder(folder)) for folder in folders)
    if waiting:
        said = f"note: {waiting} of {len(folders)} runs are not finished: what they have so far is exported"
        Console(stderr=True, highlight=False, soft_wrap=True).print(said, markup=False)
    for file, ending in ((torch, ".pt"), (npz, ".npz")):
        if file is not None:
            console.print(f"model: {_model(folders, file, ending)}", markup=False)
    _tables(console, folders, csv, parquet)
    if tensorboard is None and mlflow is None:
        return
    count = rounds = 0
    for folder in folders:
        found = read(folder)
        with Writers(folder.absolute().name, found.config.to_dict(), tensorboard, mlflow) as writers:
            writers.take(found.history.rows)
        count, rounds = count + 1, rounds + len(found.history.rows)
    places = " and ".join(str(place) for place in (tensorboard, mlflow) if place is not None)
    console.print(f"{count} runs, {rounds} rounds: {places}", markup=False)


def _finished(files: RunFolder) -> bool:
    """Whether the run came to its end; a deployment writes no metrics, but closes its journal."""
    if files.finished:
        return True
    journal = files.reader()
    return journal.header.get("kind") == "flower" and ended(journal.newest())


def _model(folders: list[Path], file: Path, ending: str) -> Path:
    check(len(folders) == 1, f"{len(folders)} runs to {file}", "a file holds one model", "name one run folder")
    endings = (ending, ".pth") if ending == ".pt" else (ending,)
    check(file.suffix in endings, f"file {file}", f"it must end in {ending}", f"name it {file.stem}{ending}")
    return read_model(folders[0]).save(file)


def _tables(console: Console, folders: list[Path], csv: Path | None, parquet: Path | None) -> None:
    if csv is None and parquet is None:
        return
    from fedcohort.report.export.run_tables import run_tables, write_csv, write_parquet

    tables = run_tables(folders)
    written = write_csv(tables, csv) if csv is not None else []
    written += write_parquet(tables, parquet) if parquet is not None else []
    for path in written:
        console.print(f"{len(tables[path.stem])} rows: {path}", markup=False)
