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
from fedcohort.report.plots.figures import FigureOptions

DEFAULT = Path("report.html")
Labels = Annotated[
    list[str] | None,
    typer.Option(help="Other names: 'uniform=Random, oort(explore=0.8)=Oort 0.8'; repeatable.", show_default=False),
]
Order = Annotated[
    str | None, typer.Option(help="What comes first in tables and legends: 'uniform, oort'.", show_default="by name")
]


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
        typer.Option(help="Write every figure to this folder; without --out, nothing else."),
    ] = None,
    formats: Annotated[str, typer.Option("--format", help="Of the figures: any of png, svg and pdf.")] = "png,svg",
    width: Annotated[
        float | None, typer.Option(help="Inches of a figure; 3.3 is a column of a paper.", show_default="7 and more")
    ] = None,
    titles: Annotated[bool, typer.Option(help="Titles in the figures; a paper has captions.")] = True,
    labels: Labels = None,
    order: Order = None,
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
    options = ReportOptions(
        tuple(metric or ()),
        baseline,
        by,
        target,
        title,
        _labels(labels or []),
        tuple(split_outside(order or "")),
        FigureOptions.of(formats, width, titles),
    )
    with _reading() as on_read:
        made = make_report(runs, out, options, figures=figures, store=Store(store), on_read=on_read)
    console = Console(highlight=False, soft_wrap=True, markup=False)
    for note in made.gathered.notes:
        console.print(f"note: {note}")
    if out is not None:
        console.print(f"wrote {out} ({out.stat().st_size / 1e6:.1f} MB, {len(made.gathered.runs)} runs)")
    if figures is not None:
        kinds = " and ".join(ending[1:].upper() for ending in FigureOptions.of(formats).endings)
        console.print(f"wrote {sum(f.parent == figures for f in made.files)} figures to {figures}, as {kinds}")


def split_outside(text: str, separator: str = ",") -> list[str]:
    """The parts of a text between separators that stand outside of brackets and quotes.

    >>> split_outside("oort(explore=0.8, clip=1), uniform")
    ['oort(explore=0.8, clip=1)', 'uniform']
    """
    parts, depth, quote = [""], 0, ""
    for letter in text:
        if quote or letter in "'\"":
            quote = "" if letter == quote else quote or letter
        else:
            depth += (letter in "([{") - (letter in ")]}")
            if letter == separator and depth == 0:
                parts.append("")
                continue
        parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


def _labels(given: list[str]) -> dict[str, str]:
    """ENTRY=TEXT, several in one text with commas."""
    found: dict[str, str] = {}
    for pair in (p for text in given for p in split_outside(text)):
        entry, *rest = split_outside(pair, "=")
        if len(rest) != 1:
            raise BadParameter(f"--labels {pair}", "a label is ENTRY=TEXT", "use e.g. --labels 'uniform=Random'")
        found[entry] = rest[0]
    return found


@contextlib.contextmanager
def _reading() -> Iterator[OnRead]:
    """A progress bar for the runs that are read."""
    screen = Console(stderr=True)
    columns = (TextColumn("reading runs"), MofNCompleteColumn(), BarColumn())
    with Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal) as bar:
        task = bar.add_task("")
        yield lambda done, total: bar.update(task, completed=done, total=total)
