"""`fedcohort report`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from fedcohort.cli.options import Baseline, By, Metrics, Runs, StoreFolder, Target
from fedcohort.errors import BadParameter
from fedcohort.experiment.store import ROOT, Store
from fedcohort.report.build import ReportOptions, make_report
from fedcohort.report.collected import OnRead

DEFAULT = Path("report.html")


def report_command(
    runs: Runs,
    out: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--out",
            help="File to write: .html (self-contained), .md, .tex, .png, .svg or .pdf.",
            show_default=str(DEFAULT),
        ),
    ] = None,
    figures: Annotated[
        Path | None,
        typer.Option(help="Write every figure to this folder, as PNG and SVG; without --out, nothing else."),
    ] = None,
    metric: Metrics = None,
    baseline: Baseline = None,
    by: By = "selector",
    target: Target = None,
    title: Annotated[str, typer.Option(help="Title of the report.")] = ReportOptions.title,
    store: StoreFolder = ROOT,
) -> None:
    """Make a report of runs: curves with seed bands, who was chosen when and why, participation, comparison.

    RUNS are run folders, folders that hold runs, or sweeps (their .toml file, or their .json file in runs/sweeps).
    """
    if out is None and figures is None:
        out = DEFAULT
    if target is not None and not 0 < target <= 1:
        raise BadParameter(f"--target {target}", "an accuracy lies between 0 and 1", "use e.g. 0.8")
    options = ReportOptions(tuple(metric or ()), baseline, by, target, title)
    with _reading() as on_read:
        made = make_report(runs, out, options, figures=figures, store=Store(store), on_read=on_read)
    console = Console(highlight=False, soft_wrap=True, markup=False)
    for note in made.gathered.notes:
        console.print(f"note: {note}")
    if out is not None:
        console.print(f"wrote {out} ({out.stat().st_size / 1e6:.1f} MB, {len(made.gathered.runs)} runs)")
    if figures is not None:
        console.print(f"wrote {sum(f.parent == figures for f in made.files)} figures to {figures}, as PNG and SVG")


@contextlib.contextmanager
def _reading() -> Iterator[OnRead]:
    """A progress bar for the runs that are read."""
    screen = Console(stderr=True)
    columns = (TextColumn("reading runs"), MofNCompleteColumn(), BarColumn())
    with Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal) as bar:
        task = bar.add_task("")
        yield lambda done, total: bar.update(task, completed=done, total=total)
