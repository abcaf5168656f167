"""`fedcohort report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from fedcohort.cli.compare_command import Baseline, By, Runs, Target
from fedcohort.errors import BadParameter
from fedcohort.experiment.metrics.stored_metrics import METRICS
from fedcohort.experiment.store import ROOT, Store
from fedcohort.report.build import ReportOptions, make_report

DEFAULT = Path("report.html")


def report_command(
    runs: Annotated[
        list[Path],
        typer.Argument(help="Run folders, folders of runs, or a sweep (its .toml, or .json in runs/sweeps)."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--out",
            help="File to write: .html (one page, nothing beside it), .md, .tex, .png, .svg or .pdf.",
            show_default=str(DEFAULT),
        ),
    ] = None,
    figures: Annotated[
        Path | None, typer.Option(help="Folder for every figure as PNG and SVG; alone, it takes the page's place.")
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(help=f"May be repeated. One of: {', '.join(METRICS)}.", show_default="the usual ones"),
    ] = None,
    baseline: Baseline = None,
    by: By = "selector",
    target: Target = None,
    title: Annotated[str, typer.Option(help="Title of the report.")] = ReportOptions.title,
    store: Runs = ROOT,
) -> None:
    """Make a report of runs: curves with seed bands, who was chosen when and why, participation, comparison."""
    if out is None and figures is None:
        out = DEFAULT
    if target is not None and not 0 < target <= 1:
        raise BadParameter(f"--target {target}", "an accuracy lies between 0 and 1", "use e.g. 0.8")
    wanted = ReportOptions(tuple(metric or ()), baseline, by, target, title)
    columns = (TextColumn("reading runs"), MofNCompleteColumn(), BarColumn())
    screen = Console(stderr=True)
    with Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal) as bar:
        task = bar.add_task("")
        made = make_report(
            runs,
            out,
            wanted,
            figures=figures,
            store=Store(store),
            on_read=lambda done, total: bar.update(task, completed=done, total=total),
        )
    console = Console(highlight=False, soft_wrap=True, markup=False)
    for note in made.gathered.notes:
        console.print(f"note: {note}")
    if out is not None:
        console.print(f"wrote {out} ({out.stat().st_size / 1e6:.1f} MB, {len(made.gathered.runs)} runs)")
    if figures is not None:
        console.print(f"wrote {sum(f.parent == figures for f in made.files)} figures to {figures}, as PNG and SVG")
