"""The picture of a world: clients x classes, skewness, label noise and times, on one page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedcohort.looks import COLOURS, GRID, INK, PALE
from fedcohort.report.plots.picture_file import picture_file
from fedcohort.worlds.built_world import NOMINAL_PARAMS, BuiltWorld
from fedcohort.worlds.describe import Description, describe

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, AMBER, GREEN = COLOURS[0], COLOURS[1], COLOURS[2]
_ROWS = 400  # of more clients than this, so many are shown, evenly spaced from the most even to the most skewed


def draw_world(world: BuiltWorld, path: str | Path, *, params: int = NOMINAL_PARAMS) -> Path:
    """Write the picture; the suffix (png, svg, pdf) decides the format."""
    from matplotlib.figure import Figure

    target = picture_file(path)
    told = describe(world, params=params)
    figure = Figure(figsize=(12.0, 7.4), dpi=130, facecolor="white")
    grid = figure.add_gridspec(
        3, 2, width_ratios=(1.25, 1.0), left=0.045, right=0.97, top=0.84, bottom=0.085, hspace=0.62, wspace=0.2
    )
    _mix(figure, figure.add_subplot(grid[:, 0]), world, told)
    _skew(figure.add_subplot(grid[0, 1]), told)
    _noise(figure.add_subplot(grid[1, 1]), told)
    _times(figure.add_subplot(grid[2, 1]), told)
    _title(figure, world, told)
    figure.savefig(target)
    return target


def _title(figure: Figure, world: BuiltWorld, told: Description) -> None:
    figure.text(0.045, 0.945, world.name, fontsize=17, fontweight="bold", color=INK)
    total = int(world.train.sizes.sum() + world.validation.sizes.sum())
    line = f"{world.spec.about}   |   {world.population:,} clients, {total:,} samples, {world.classes} classes"
    figure.text(0.045, 0.906, line, fontsize=10, color=INK)
    figure.text(0.97, 0.947, f"seed {world.seed}   digest {world.digest[:12]}", fontsize=8, color=PALE, ha="right")
    other = f"availability {world.spec.availability.kind}   drop-out {world.fixed['dropout'].mean():.1%}"
    figure.text(0.97, 0.925, other, fontsize=8, color=PALE, ha="right")
    figure.text(0.97, 0.903, f"liars: {told.summary['liars']}", fontsize=8, color=PALE, ha="right")


def _mix(figure: Figure, ax: Axes, world: BuiltWorld, told: Description) -> None:
    """Share of each class, one row per client, the most even at the top."""
    order = np.argsort(told.columns["js"], kind="stable")
    if order.size > _ROWS:
        order = order[np.linspace(0, order.size - 1, _ROWS).astype(np.int64)]
    share = world.histogram(clean=True)[order]
    image = ax.imshow(share, aspect="auto", cmap=_blues(), vmin=0.0, vmax=1.0, interpolation="nearest")
    _plain(ax, grid=False)
    step = max(1, world.classes // 16)
    ax.set_xticks(np.arange(0, world.classes, step))
    if share.shape[0] <= 60:
        ax.set_yticks(np.arange(-0.5, share.shape[0]), minor=True)
        ax.grid(which="minor", axis="y", color="white", linewidth=0.6)
        ax.tick_params(which="minor", length=0)
    ax.set_yticks([0, share.shape[0] - 1], ["most even", "most skewed"], rotation=90)
    first, last = ax.get_yticklabels()
    first.set_verticalalignment("top")
    last.set_verticalalignment("bottom")
    ax.set_xlabel("class", fontsize=8.5, color=INK)
    shown = "" if order.size == world.population else f", {order.size} of {world.population:,} clients"
    title = f"Share of each class in a client's samples (true labels){shown}"
    ax.set_title(title, loc="left", fontsize=10.5, color=INK)
    bar = figure.colorbar(image, ax=ax, fraction=0.035, pad=0.02, aspect=40, shrink=1.0, ticks=[0, 0.25, 0.5, 0.75, 1])
    bar.ax.set_yticklabels(["0", "25 %", "50 %", "75 %", "100 %"])
    bar.ax.tick_params(labelsize=8, colors=INK, length=0)
    bar.outline.set_visible(False)


def _skew(ax: Axes, told: Description) -> None:
    js, effective = told.columns["js"], told.columns["effective"]
    ax.hist(js, bins=np.linspace(0.0, 1.0, 41).tolist(), color=BLUE)
    note = f"effective classes: mean {effective.mean():.1f}, least {effective.min():.1f}"
    _label(ax, "Skewness: JS divergence to the global mix", f"bits, 0: the mix of all clients; {note}")
    ax.set_xlim(0.0, 1.0)
    _mean(ax, float(js.mean()), f"{js.mean():.2f}")


def _noise(ax: Axes, told: Description) -> None:
    rate = told.columns["wrong"]
    _label(
        ax, "Label noise: share of a client's labels that are wrong", "in the training part; selectors do not see it"
    )
    if not rate.any():
        _empty(ax)
        ax.text(0.5, 0.5, "every label is right", transform=ax.transAxes, ha="center", va="center", color=PALE)
        return
    top = min(1.0, max(0.1, float(np.ceil(rate.max() * 20) / 20)))
    ax.hist(rate, bins=np.linspace(0.0, top, 41).tolist(), color=AMBER)
    ax.set_xlim(0.0, top)
    _mean(ax, float(rate.mean()), f"{rate.mean():.1%}")


def _times(ax: Axes, told: Description) -> None:
    """Every draw, and the clients' own means: how much is random and how much is the client."""
    draws = told.seconds[told.seconds > 0]
    own = told.columns["seconds"][told.columns["seconds"] > 0]
    _label(ax, "Time of a round", "seconds, logarithmic")
    if draws.size == 0 or np.ptp(draws) == 0.0:
        what = "nobody needs any time" if draws.size == 0 else f"everybody needs {draws[0]:.3g} s"
        _empty(ax)
        ax.text(0.5, 0.5, what, transform=ax.transAxes, ha="center", va="center", color=PALE)
        return
    low, high = np.quantile(draws, [0.0005, 0.9995])
    bins = np.geomspace(min(low, own.min()) * 0.95, max(high, own.max()) * 1.05, 61).tolist()
    ax.hist(draws, bins=bins, weights=np.full(draws.size, 1 / draws.size), color=GREEN, alpha=0.55, label="all draws")
    ax.set_xscale("log")
    ax.set_xlim(bins[0], bins[-1])
    narrow = bins[-1] < 30 * bins[0]
    ax.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    ax.xaxis.set_minor_formatter(lambda x, _: f"{x:g}" if narrow and f"{x:.0e}"[0] in "235" else "")
    ax.tick_params(which="minor", labelsize=8.5, colors=INK, length=2)
    top = ax.get_ylim()[1]
    shown = np.sort(own)[:: max(1, own.size // 300)]
    ax.plot(shown, np.full(shown.size, -0.07 * top), "|", color=INK, ms=7, mew=0.8, alpha=0.6, label="client means")
    ax.set_ylim(-0.14 * top, top)
    ax.set_yticks([t for t in ax.get_yticks() if 0.0 <= t <= top])
    ax.yaxis.set_major_formatter(lambda y, _: f"{y:g}")
    ax.set_ylabel("share of draws", fontsize=8.5, color=INK)
    place = {"loc": "lower right", "bbox_to_anchor": (1.0, 0.98), "ncols": 2, "borderaxespad": 0.2}
    ax.legend(fontsize=8.5, frameon=False, labelcolor=INK, handletextpad=0.4, **place)


def _mean(ax: Axes, x: float, text: str) -> None:
    ax.set_ylim(0.0, 1.2 * ax.get_ylim()[1])
    ax.axvline(x, color=INK, linewidth=1.0, linestyle=(0, (4, 3)))
    right = x < 0.75 * ax.get_xlim()[1]
    ax.annotate(
        f"mean {text}",
        (x, ax.get_ylim()[1]),
        xytext=(4 if right else -4, -2),
        textcoords="offset points",
        ha="left" if right else "right",
        va="top",
        fontsize=8,
        color=INK,
    )


def _label(ax: Axes, title: str, below: str) -> None:
    _plain(ax, grid=True)
    ax.set_title(title, loc="left", fontsize=10.5, color=INK)
    ax.set_xlabel(below, fontsize=8.5, color=INK)
    ax.set_ylabel("clients", fontsize=8.5, color=INK)
    ax.locator_params(axis="y", integer=True, nbins=5)
    ax.yaxis.set_major_formatter(lambda y, _: f"{y:,.0f}")


def _empty(ax: Axes) -> None:
    ax.set_xticks([])
    ax.set_yticks([])
    ax.set_xlabel("")
    ax.set_ylabel("")


def _plain(ax: Axes, *, grid: bool) -> None:
    for side in ("top", "right", "left"):
        ax.spines[side].set_visible(False)
    ax.spines["bottom"].set_color(PALE)
    ax.tick_params(labelsize=8.5, colors=INK, length=0)
    if grid:
        ax.grid(axis="y", color=GRID, linewidth=0.7)
        ax.set_axisbelow(True)


def _blues() -> Any:
    from matplotlib.colors import LinearSegmentedColormap

    steps: list[str] = ["#f4f7fa", "#c9dcee", "#7fb0d9", "#2f6fb2", "#123a63"]
    return LinearSegmentedColormap.from_list("share", steps)
