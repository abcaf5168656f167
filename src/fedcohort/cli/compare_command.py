"""`fedcohort compare`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from fedcohort.cli.options import Baseline, By, Metrics, Runs, StoreFolder, Target
from fedcohort.cli.progress import plain
from fedcohort.experiment.metrics import comparison as comparing
from fedcohort.experiment.metrics.comparison import Comparison, Row, Setting
from fedcohort.experiment.metrics.run_metrics import words
from fedcohort.experiment.metrics.stored_metrics import METRICS, TIMES
from fedcohort.experiment.store import ROOT, Store
from fedcohort.looks import time_text


def compare_command(
    paths: Runs,
    metric: Metrics = None,
    baseline: Baseline = None,
    by: By = "selector",
    target: Target = None,
    store: StoreFolder = ROOT,
    out: Annotated[Path | None, typer.Option("--json", help="Also write the comparison to this JSON file.")] = None,
) -> None:
    """Compare runs, paired by seed, and say which differences are real and which are inside the noise.

    PATHS are run folders, folders that hold runs, or sweeps (their .toml file, or their .json file in runs/sweeps).
    """
    console = Console(width=None if sys.stdout.isatty() else 180, highlight=False)
    found = []
    for name in metric or ["terminal"]:
        made = comparing.compare(paths, name=name, baseline=baseline, by=by, target=target, store=Store(store))
        show(made, console)
        found.append(made.data())
    if out is not None:
        out.write_text(json.dumps(found, indent=1))


def show(comparison: Comparison, console: Console) -> None:
    """Print a comparison."""
    better = "higher" if comparison.better > 0 else "lower"
    console.print(f"\n[bold]{comparison.metric}[/]: {comparison.about} ({better} is better)")
    for setting in comparison.settings:
        goal = "" if setting.target is None else f", target {setting.target:.4f}"
        console.print(f"\n{plain(setting.name)}{goal}")
        console.print(_table(comparison, setting))
    if comparison.ranks is not None:
        ranks = comparison.ranks
        told = ", ".join(f"{e} {a:.2f}" for e, a in zip(ranks.entries, ranks.average, strict=True))
        console.print(f"\naverage ranks over {ranks.settings} settings (1 is best): {plain(told)}")
        console.print(plain(ranks.words))
    for note in comparison.notes:
        console.print(f"note: {plain(note)}")
    console.print(rf"in \[]: {comparison.brackets}; p: exact, two-sided, Holm for the {comparison.by}s of a setting")


def _table(comparison: Comparison, setting: Setting) -> Table:
    table = Table(header_style="bold", box=None, pad_edge=False)
    won = any(r.improvement is not None for r in setting.rows)
    columns = (comparison.by, "mean", "seeds", f"minus {comparison.baseline}", "won:lost", "p", "verdict")
    for name in (*columns[:-1], *(("of the gap to IID",) if won else ()), columns[-1]):
        table.add_column(plain(name), overflow="fold")
    missing = METRICS[comparison.metric].missing
    for row in setting.rows:
        ends = (row.low, row.high) if row.count > 1 else (None, None)
        cells = [
            plain(row.entry),
            _interval(comparison.metric, row.mean, *ends, missing),
            f"{row.count}/{len(row.values)}",
        ]
        cells += _against(comparison.metric, row, row.entry == comparison.baseline)
        if won:
            cells.append("-" if row.improvement is None else f"{100 * row.improvement:.1f} %")
        table.add_row(*cells, row.verdict)
    return table


def _against(metric: str, row: Row, baseline: bool) -> list[str]:
    if baseline:
        return ["", "", ""]
    p = "-" if row.adjusted is None else f"{row.adjusted:.3f}"
    ends = (row.difference_low, row.difference_high) if row.pairs - row.unreached > 1 else (None, None)
    return [_interval(metric, row.difference, *ends, "-"), f"{row.wins}:{row.losses}", p]


def _interval(metric: str, mean: float | None, low: float | None, high: float | None, missing: str) -> str:
    if mean is None:
        return missing
    if metric in TIMES:
        return time_text(mean, low, high, r"\[{}, {}]")
    if low is None:
        return words(mean)
    return rf"{words(mean)} \[{words(low)}, {words(high)}]"
