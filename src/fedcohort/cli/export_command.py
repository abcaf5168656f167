"""`fedcohort export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedcohort.cli.options import ToMLflow, ToTensorBoard
from fedcohort.errors import BadParameter
from fedcohort.experiment.runs import read
from fedcohort.experiment.store import find
from fedcohort.report.export.writers import Writers


def export_command(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders of runs.")],
    tensorboard: ToTensorBoard = None,
    mlflow: ToMLflow = None,
) -> None:
    """Export runs to TensorBoard or MLflow. RUNS are run folders, or folders that hold runs.

    Rounds that were exported before are not written twice.
    """
    if tensorboard is None and mlflow is None:
        raise BadParameter("export", "no destination was given", "add --tensorboard FOLDER or --mlflow FOLDER")
    count = rounds = 0
    for folder in find(runs):
        found = read(folder)
        with Writers(folder.absolute().name, found.config.to_dict(), tensorboard, mlflow) as writers:
            writers.take(found.history.rows)
        count, rounds = count + 1, rounds + len(found.history.rows)
    places = " and ".join(str(place) for place in (tensorboard, mlflow) if place is not None)
    Console(highlight=False, soft_wrap=True).print(f"{count} runs, {rounds} rounds: {places}", markup=False)
