"""`fedcohort skew`: rank clients by skewness without a training job."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from fedcohort.cli.options import Picture
from fedcohort.cli.own_data import OWN_DATA, own_data
from fedcohort.errors import BadParameter
from fedcohort.report.plots.picture_file import picture_file

if TYPE_CHECKING:
    from fedcohort.data.dataset import Dataset
    from fedcohort.skew import SkewReport

WORLD, TASK = "fedacs-uniform-v1", "digits-mlp"
WIDE = 400  # characters of a table at most
CLASSES, MATRIX = 8, 10  # so many classes, and clients, are shown one by one


def skew(
    world: Annotated[
        str | None,
        typer.Option(help="World whose clients are ranked.", show_default=f"the owners of the data, else {WORLD}"),
    ] = None,
    task: Annotated[
        str | None, typer.Option(help="Task whose model is used to measure them.", show_default=TASK)
    ] = None,
    data: Annotated[str | None, typer.Option(help=OWN_DATA)] = None,
    target: Annotated[str, typer.Option(help="Column of the labels, where --data is a table.")] = "",
    client: Annotated[str, typer.Option(help="Column of the owners, where --data is a table.")] = "",
    rounds: Annotated[int, typer.Option(help="Rounds; in each, a client is compared at most once.")] = 30,
    per_round: Annotated[int, typer.Option(help="Clients measured in a round (0: all).")] = 0,
    share: Annotated[float, typer.Option(help="Share of the clients that counts as least skewed.")] = 0.4,
    confidence: Annotated[
        float, typer.Option(help="Confidence of the band, and below which a client gets a question mark.")
    ] = 0.95,
    train: Annotated[
        bool, typer.Option("--train", help="Train one model along the way instead of using fresh ones.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of the world and of the measurements.")] = 0,
    rows: Annotated[int, typer.Option(help="Rows shown from each end of the table (0: all).")] = 10,
    png: Picture = None,
    out: Annotated[Path | None, typer.Option("--csv", help="Write the whole table to this CSV file.")] = None,
) -> None:
    """Rank clients by how skewed their data are, with a confidence statement, without seeing anybody's data."""
    from fedcohort.skew import rank_clients

    _check(data, task, confidence, rows, out)
    if png is not None:
        picture_file(png)
    given: str | Dataset = own_data(data, target, client) if data is not None else task or TASK
    place = world if world is not None or data is not None else _place(task or TASK)
    how: dict[str, Any] = {"rounds": rounds, "per_round": per_round, "share": share, "train": train, "seed": seed}
    report = rank_clients(given, place, delta=1 - confidence, **how)
    _show(report, rows, own=data is not None or bool(report.names))
    if out is not None:
        _write(report, out)
        typer.echo(f"table: {out.resolve()}")
    if png is not None:
        from fedcohort.report.plots.skew_picture import draw_skew

        draw_skew(report, png)
        typer.echo(f"picture: {png.resolve()}")


def _place(task: str) -> str | None:
    """The world where none is named: none at all for data that name their owners."""
    from fedcohort.experiment.texts import OWNERS, default_world

    return None if default_world(task) == OWNERS else WORLD


def _check(data: str | None, task: str | None, confidence: float, rows: int, out: Path | None) -> None:
    if data is not None and task is not None:
        raise BadParameter(
            f"--data {data} --task {task}", "samples come from one of the two", "leave out --data or --task"
        )
    if not 0 < confidence < 1:
        raise BadParameter(f"--confidence {confidence}", "a probability lies inside (0, 1)", "use e.g. 0.95")
    if rows < 0:
        raise BadParameter(f"--rows {rows}", "a number of rows is not negative", "use 0 to show all")
    if out is not None and not out.parent.is_dir():
        raise BadParameter(f"--csv {out}", f"there is no folder {out.parent}", "create it first")


def _show(report: SkewReport, rows: int, own: bool) -> None:
    console = Console(highlight=False, soft_wrap=True)
    wide = Console(highlight=False, width=max(console.width, WIDE))  # names are never cut; a narrow screen wraps lines
    wide.print(_table(report, rows))
    if own:
        wide.print(_mixes(report, rows))
        if report.population <= MATRIX:
            wide.print(_distances(report))
    console.print(report.statement(), markup=False)
    if report.truth is not None and np.ptp(report.truth) > 0:
        from fedcohort.core.stats import spearman

        rho = spearman(report.truth[report.known], report.rank[report.known])
        console.print(f"The labels are known here: rank correlation with the true distance of class mixes {rho:.3f}.")


def _table(report: SkewReport, rows: int) -> Table:
    table = Table(title=f"{report.task} in {report.world}", title_justify="left", box=None, pad_edge=False)
    for name in ("rank", "client", "samples", "Q", "duels won", "compared", "confidence", "side"):
        table.add_column(name, justify="right", no_wrap=True)
    cells = report.columns()
    for i in _shown(report, rows):
        table.add_row(*(["..."] * 8 if i < 0 else _row({k: v[i] for k, v in cells.items()}, report)))
    return table


def _shown(report: SkewReport, rows: int) -> list[int]:
    """Places in the ranking that are shown; -1 for those that are left out."""
    n = report.population
    return list(range(n)) if rows == 0 or n <= 2 * rows else [*range(rows), -1, *range(n - rows, n)]


def _mixes(report: SkewReport, rows: int) -> Table:
    """The share of each class at each client, in the order of the ranking; of many classes the largest three."""
    assert report.counts is not None
    assert report.truth is not None
    labels = [str(name) for name in report.class_names or range(report.counts.shape[1])]
    wide = len(labels) <= CLASSES
    table = Table(title="mix of classes", title_justify="left", box=None, pad_edge=False)
    for name in ("client", "samples", "JS bits", *(labels if wide else ["largest classes"])):
        table.add_column(name, justify="right", no_wrap=True)
    order = report.columns()["client"]
    mix = report.counts / np.maximum(report.counts.sum(axis=1), 1)[:, None]
    for i in _shown(report, rows):
        if i < 0:
            table.add_row(*["..."] * len(table.columns))
            continue
        c = int(order[i])
        top = [f"{labels[k]} {mix[c, k]:.0%}" for k in np.argsort(-mix[c], kind="stable")[:3]]
        shares = [f"{share:.0%}" for share in mix[c]] if wide else [", ".join(top)]
        table.add_row(report.name(c), f"{report.samples[c]}", f"{report.truth[c]:.3f}", *shares)
    everybody = report.counts.sum(axis=0) / max(int(report.counts.sum()), 1)
    if wide:
        table.add_row("everybody", f"{report.counts.sum()}", "", *(f"{share:.0%}" for share in everybody))
    return table


def _distances(report: SkewReport) -> Table:
    found = report.distances()
    assert found is not None
    table = Table(title="distance of two mixes, JS bits", title_justify="left", box=None, pad_edge=False)
    names = [report.name(c) for c in range(report.population)]
    for name in ("", *names):
        table.add_column(name, justify="right", no_wrap=True)
    for name, row in zip(names, found, strict=True):
        table.add_row(name, *(f"{bits:.3f}" for bits in row))
    return table


def _row(cell: dict[str, Any], report: SkewReport) -> list[str]:
    who = report.name(int(cell["client"]))
    if cell["compared"] == 0:
        return ["-", who, f"{cell['samples']:.0f}", "-", "-", "0", "-", "never compared"]
    even = report.evenness is not None and report.evenness.verdict == "even"
    side = (
        "practically even"
        if even
        else "least skewed"
        if math.isnan(report.border) or cell["win_share"] > report.border
        else "more skewed"
    )
    return [
        f"{cell['rank']:g}",
        who,
        f"{cell['samples']:.0f}",
        f"{cell['q']:.2f}",
        f"{cell['win_share']:.2f}",
        f"{cell['compared']:.0f}",
        f"{math.floor(1000 * cell['confidence']) / 10:.1f} %",
        side if cell["settled"] or even else f"{side}?",
    ]


def _write(report: SkewReport, out: Path) -> None:
    cells = report.columns()
    with out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(cells)
        writer.writerows(zip(*(value.tolist() for value in cells.values()), strict=True))
