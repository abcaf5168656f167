"""The picture of `fedcohort skew`: who wins how many duels, how certain that is, and what skewness correlates with."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from fedcohort.core.stats import spearman
from fedcohort.looks import COLOURS
from fedcohort.report.plots.figures import drawing, save_figure, wrapped
from fedcohort.report.plots.picture_file import picture_file
from fedcohort.skew import SkewReport

INSIDE, OUTSIDE, OPEN = COLOURS[0], COLOURS[1], "#a9adb5"


def draw_skew(report: SkewReport, path: Path) -> None:
    """Draw the report into a file."""
    target = picture_file(path)
    with drawing(12, 4.8) as figure:
        left, right = figure.subplots(1, 2, width_ratios=(1.5, 1))
        _duels(left, report)
        _against(right, report)
        title = f"Skewness of {report.population} clients: {report.task} in {report.world}, {report.rounds} rounds"
        figure.suptitle(wrapped(title, 12), x=0.01, ha="left")
        save_figure(figure, target)


def _duels(axis: Any, report: SkewReport) -> None:
    """Share of duels won by rank, with what Hoeffding allows around it, and the border of the least skewed."""
    order = report.order()
    place, share, reach = np.arange(1, order.size + 1), report.win_share[order], report.radius[order]
    low, high = np.clip(share - reach, 0, 1), np.clip(share + reach, 0, 1)
    sure = f"{1 - report.delta:.0%}"
    axis.fill_between(place, low, high, color=OPEN, alpha=0.22, linewidth=0, label=f"{sure} band, all clients at once")
    size = 22 if order.size <= 400 else 5
    border = report.border
    above = share > border if not math.isnan(border) else np.ones(order.size, np.bool_)
    settled = report.settled[order]
    for at, colour, label in (
        (settled & above, INSIDE, f"least skewed {report.share:.0%}, {sure} sure each"),
        (settled & ~above, OUTSIDE, f"the others, {sure} sure each"),
        (~settled, OPEN, "side not settled"),
    ):
        if at.any():
            axis.scatter(place[at], share[at], s=size, color=colour, label=f"{label}: {int(at.sum())}", zorder=3)
    if not math.isnan(border):
        axis.axhline(border, color="#444", linewidth=0.9, linestyle=":", label=f"border at {border:.2f}")
    axis.set(
        title="Duels won, from the least to the most skewed",
        xlabel="rank of the client",
        ylabel="share of duels won",
        ylim=(-0.02, 1.02),
        xlim=(0, max(order.size, 1) + 1),
    )
    axis.legend(frameon=False, loc="upper right", fontsize=8.5)


def _against(axis: Any, report: SkewReport) -> None:
    """Q against the true distance of the class mix where it is known, else against the number of samples."""
    at = np.flatnonzero(report.known)
    truth = report.truth
    x = report.samples if truth is None else truth
    name = "samples of the client" if truth is None else "true distance of its class mix from everybody's, bits"
    rho = spearman(np.asarray(x[at], np.float64), report.q[at])
    axis.scatter(x[at], report.q[at], s=16 if at.size <= 400 else 4, color=INSIDE, alpha=0.7, linewidth=0)
    axis.set(title=f"Measured skewness, rank correlation {rho:.2f}", xlabel=name, ylabel="Q / median Q of the round")
    axis.set_ylim(bottom=0)
