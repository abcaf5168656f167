"""Figures of a report with matplotlib: one page, or one file per picture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedcohort.report.collected import Gathered, Run
from fedcohort.report.plots import bands
from fedcohort.report.views import OUTCOMES, cohort_map

SERIES = ("#0072b2", "#d55e00", "#009e73", "#b3518a", "#b07c00", "#2f9fd8", "#4a4a4a", "#8a6d3b")
OUTCOME = ("#0072b2", "#e69f00", "#d55e00", "#b3518a", "#7fc4ea", "#8b96a1")
DASHES = ("-", "--", ":", "-.")
SETTINGS = 12  # that are drawn
MAPS = 8  # cohort maps of a setting
CLIENTS = 400  # rows of a cohort map
ORDERS = {
    "skew": "clients, the most even on top, the most skewed below",
    "noise": "clients, the cleanest labels on top, the noisiest below",
    "speed": "clients, the fastest on top, the slowest below",
}
KINDS = {"rounds": "Accuracy against rounds", "time": "Accuracy against virtual time", "asked": "Participation"}
_STYLE = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e3e8ec",
    "text.parse_math": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "fedcohort",
    "savefig.dpi": 150,
}


@dataclass(frozen=True)
class Figure:
    """A written figure."""

    title: str
    file: Path


def overview(gathered: Gathered, path: Path) -> Figure:
    """One picture: a row per setting with accuracy against rounds and time, and participation."""
    settings = gathered.settings[:SETTINGS]
    colours = _colours(gathered)
    with _drawing(15, 4.3 * len(settings)) as figure:
        grid = figure.subplots(len(settings), len(KINDS), squeeze=False)
        for row, setting in zip(grid, settings, strict=True):
            for axis, kind in zip(row, KINDS, strict=True):
                _curves(axis, gathered, setting, kind, colours)
                axis.set_title(KINDS[kind], loc="left")
            _legend(row[0])
            row[0].set_title(setting if len(settings) > 1 else KINDS["rounds"], loc="left")
        title = settings[0] if len(settings) == 1 else f"{len(settings)} of {len(gathered.settings)} settings"
        figure.suptitle(title)
        _save(figure, path)
    return Figure(title, path)


def all_figures(gathered: Gathered, folder: Path, endings: Sequence[str] = (".png", ".svg")) -> list[Figure]:
    """Every picture into a folder, in each of these formats; the list names the first format."""
    folder.mkdir(parents=True, exist_ok=True)
    colours = _colours(gathered)
    out = []
    for at, setting in enumerate(gathered.settings[:SETTINGS]):
        for kind, title in KINDS.items():
            with _drawing(7, 4.4) as figure:
                axis = figure.subplots()
                _curves(axis, gathered, setting, kind, colours)
                axis.set_title(f"{title}\n{setting}", loc="left")
                _legend(axis)
                out.append(_saved(figure, folder, f"{kind}-{at + 1}", endings, f"{title}: {setting}"))
        firsts = [runs[0] for runs in gathered.entries(setting).values() if runs[0].history.length]
        for number, run in enumerate(firsts[:MAPS]):
            with _drawing(13, 5.2) as figure:
                title = _maps(figure, run)
                out.append(_saved(figure, folder, f"cohorts-{at + 1}-{number + 1}", endings, title))
    return out


def _curves(axis: Any, gathered: Gathered, setting: str, kind: str, colours: dict[str, int]) -> None:
    from matplotlib.ticker import MaxNLocator

    for entry, runs in gathered.entries(setting).items():
        done = [r for r in runs if r.finished]
        for group in [done] if done else [[r] for r in runs if r.history.length]:
            band = _band(group, kind)
            colour, dash = SERIES[colours[entry] % len(SERIES)], DASHES[colours[entry] // len(SERIES) % len(DASHES)]
            name = f"{entry} ({len(group)} seeds)" if len(group) > 1 else f"{entry} (seed {group[0].config.seed})"
            axis.plot(band.x, band.y, dash, color=colour, label=name, linewidth=1.8)
            if band.low is not None and band.high is not None:
                axis.fill_between(band.x, band.low, band.high, color=colour, alpha=0.15, linewidth=0)
    labels = {
        "rounds": ("round", "test accuracy"),
        "time": ("virtual seconds", "test accuracy"),
        "asked": ("clients, most often asked first", "times asked"),
    }
    axis.set(xlabel=labels[kind][0], ylabel=labels[kind][1])
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))


def _band(runs: Sequence[Run], kind: str) -> bands.Band:
    if kind == "asked":
        return bands.by_rank([r.history.counts for r in runs])
    accuracy = [r.history.accuracy for r in runs]
    return bands.by_round(accuracy) if kind == "rounds" else bands.by_time([r.history.clock for r in runs], accuracy)


def _maps(figure: Any, run: Run) -> str:
    """Clients by rounds, once for each order of the clients that is known."""
    found = cohort_map(run.folder, rows=CLIENTS)
    names = [n for n in ORDERS if n in found["orders"]] or ["slot"]
    axes = figure.subplots(1, len(names), squeeze=False)[0]
    for axis, name in zip(axes, names, strict=True):
        _map(axis, found, name)
    used = sorted({int(c) for codes in found["outcomes"] for c in codes})
    if used:
        from matplotlib.patches import Patch

        keys = [Patch(color=OUTCOME[c], label=OUTCOMES[c]) for c in used]
        figure.legend(handles=keys, frameon=False, loc="outside lower center", ncols=len(keys), fontsize=8)
    shown, total = len(found["clients"]), found["population"]
    some = f", the {shown} most often asked of {total:,} clients" if shown < total else ""
    title = f"Who was chosen when: {run.entry}, seed {run.config.seed}"
    figure.suptitle(f"{title}\n{run.setting}{some}", x=0.01, ha="left")
    return f"{title}, {run.setting}"


def _map(axis: Any, found: dict[str, Any], name: str) -> None:
    from matplotlib.colors import ListedColormap
    from matplotlib.ticker import MaxNLocator

    place = np.empty(len(found["clients"]), np.int64)
    place[found["orders"][name]] = np.arange(place.size)
    picture = np.full((place.size, max(found["rounds"], 1)), -1.0)
    for t, (rows, codes) in enumerate(zip(found["asked"], found["outcomes"], strict=True)):
        picture[place[rows], t] = [float(c) for c in codes]
    shades = ListedColormap(["#f1f3f5", *OUTCOME])
    extent = (0.5, picture.shape[1] + 0.5, place.size, 0)
    axis.imshow(picture, aspect="auto", cmap=shades, vmin=-1.5, vmax=5.5, interpolation="nearest", extent=extent)
    axis.grid(False)
    axis.set_yticks([])
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.set(xlabel="round", ylabel=ORDERS.get(name, "clients in the order of their slots"))


def _colours(gathered: Gathered) -> dict[str, int]:
    return {entry: at for at, entry in enumerate(sorted({r.entry for r in gathered.runs}))}


def _legend(axis: Any) -> None:
    if axis.get_legend_handles_labels()[0]:
        axis.legend(frameon=False, fontsize=8)


@contextmanager
def _drawing(width: float, height: float) -> Iterator[Any]:
    """An empty figure in the style of reports; nothing global is changed."""
    import matplotlib
    from matplotlib.figure import Figure as Canvas

    with matplotlib.rc_context(_STYLE):
        yield Canvas(figsize=(width, height), layout="constrained", facecolor="white")


def _saved(figure: Any, folder: Path, name: str, endings: Sequence[str], title: str) -> Figure:
    for ending in endings:
        _save(figure, folder / f"{name}{ending}")
    return Figure(title, folder / f"{name}{endings[0]}")


def _save(figure: Any, path: Path) -> None:
    """The same runs give the same bytes."""
    dated = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
    figure.savefig(path, metadata=dated.get(path.suffix.lower()))
