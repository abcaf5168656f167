"""`fedcohort export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedcohort.errors import BadParameter
from fedcohort.experiment.run import read
from fedcohort.experiment.store import find
from fedcohort.report.export.writers import Writers

ToTensorBoard = Annotated[Path | None, typer.Option(help="Folder for TensorBoard event files, one folder per run.")]
ToMLflow = Annotated[str | None, typer.Option(help="MLflow tracking URI, or a folder that gets an mlflow.db.")]


def export_command(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders of runs.")],
    tensorboard: ToTensorBoard = None,
    mlflow: ToMLflow = None,
) -> None:
    """Write runs for TensorBoard or MLflow. What is there already is not written twice."""
    if tensorboard is None and mlflow is None:
        raise BadParameter("export", "it is not said where to", "give --tensorboard FOLDER or --mlflow FOLDER")
    count = rounds = 0
    for folder in find(runs):
        found = read(folder)
        with Writers(folder.absolute().name, found.config.to_dict(), tensorboard, mlflow) as writers:
            writers.take(found.history.rows)
        count, rounds = count + 1, rounds + len(found.history.rows)
    places = " and ".join(str(place) for place in (tensorboard, mlflow) if place is not None)
    Console(highlight=False, soft_wrap=True).print(f"{count} runs, {rounds} rounds: {places}", markup=False)
