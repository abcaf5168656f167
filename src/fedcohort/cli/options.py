"""Options that several commands have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedcohort.experiment.metrics.stored_metrics import METRICS

# of runs
CohortSize = Annotated[int | None, typer.Option("--cohort-size", "-k", help="Replies wanted in each round.")]
Force = Annotated[bool, typer.Option("--force", help="Re-run even if a stored result exists.")]
Workers = Annotated[int, typer.Option(help="Number of single-threaded processes (0: one per core).")]
StoreFolder = Annotated[Path, typer.Option(help="Folder that holds the runs.")]
ToTensorBoard = Annotated[
    Path | None, typer.Option(help="Write TensorBoard event files to this folder, one subfolder per run.")
]
ToMLflow = Annotated[
    str | None, typer.Option(help="Write to MLflow: a tracking URI, or a folder in which mlflow.db is created.")
]

# of comparisons and reports
Runs = Annotated[list[Path], typer.Argument(help="Run folders, folders that hold runs, or sweeps.")]
Metrics = Annotated[
    list[str] | None,
    typer.Option(
        "--metric", help=f"Repeatable. One of: {', '.join(METRICS)}.", show_default="terminal; reports show more"
    ),
]
Baseline = Annotated[
    str | None, typer.Option(help="The entry that the others are compared with.", show_default="uniform or fedavg")
]
By = Annotated[str, typer.Option(help="What to compare: selector or method.")]
Target = Annotated[
    float | None,
    typer.Option(
        help="Target accuracy, for metrics that need one.", show_default="the terminal accuracy of the baseline"
    ),
]

# of pictures
Picture = Annotated[Path | None, typer.Option("--png", help="Draw a picture to this file (.png, .svg or .pdf).")]
