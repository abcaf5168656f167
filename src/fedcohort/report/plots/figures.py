"""Figures of a report with matplotlib: one page, or one file per picture, in the size and format a paper wants."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedcohort.errors import BadParameter, check
from fedcohort.experiment.metrics.comparison import Comparison
from fedcohort.looks import GRID
from fedcohort.report.collected import Gathered, Run
from fedcohort.report.plots.curve_axes import plot_curves, plot_metric, plot_participation
from fedcohort.report.plots.map_axes import CLIENTS, map_orders, outcome_keys, plot_cohorts
from fedcohort.report.plots.picture_file import ENDINGS
from fedcohort.report.views import cohort_map
from fedcohort.rounds.history import History

SETTINGS = 12  # that are drawn
MAPS = 8  # cohort maps of a setting
WIDTH = 7.0  # inches, where none is given
NARROW = 5.0  # inches: below, letters are smaller and the legend stands under the picture
COLUMNS = {"loss": "loss", "macro_f1": "macro_f1", "f1": "f1"}  # metric -> what is drawn per round, else the accuracy
_TRAITS = ("skew", "noise", "speed")
_STYLE = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": GRID,
    "text.parse_math": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "fedcohort",
    "pdf.fonttype": 42,  # publishers refuse the other kind
    "savefig.dpi": 150,
}


@dataclass(frozen=True)
class FigureOptions:
    """How figures are written: endings of the files, width in inches (None: as wide as looks good), titles or not.

    >>> FigureOptions.of("pdf, png", width=3.3).endings
    ('.pdf', '.png')
    """

    endings: tuple[str, ...] = (".png", ".svg")
    width: float | None = None
    titles: bool = True

    @classmethod
    def of(cls, formats: str, width: float | None = None, titles: bool = True) -> FigureOptions:
        """From texts such as "pdf,svg"."""
        found = tuple(dict.fromkeys(f".{f.strip().lstrip('.').lower()}" for f in formats.split(",") if f.strip()))
        if not found or not set(found) <= set(ENDINGS):
            known = ", ".join(e[1:] for e in ENDINGS)
            raise BadParameter(f"--format {formats}", f"formats are {known}", "use e.g. pdf,svg,png")
        fine = width is None or 1.0 <= width <= 40.0
        check(fine, f"--width {width}", "a figure is 1 to 40 inches wide", "use 3.3 for one column of a paper")
        return cls(found, width, titles)

    @property
    def inches(self) -> float:
        """The width of a figure with one picture."""
        return self.width or WIDTH


@dataclass(frozen=True)
class Figure:
    """A written figure."""

    title: str
    file: Path


@dataclass
class _Folder:
    """Figures that are written next to each other."""

    place: Path
    options: FigureOptions
    written: list[Figure] = field(default_factory=list)

    def add(
        self, name: str, title: str, draw: Callable[[Any], object], shape: float = 0.66, wide: float | None = None
    ) -> None:
        """One figure: `draw` puts something on it."""
        width = self.options.width or wide or WIDTH
        shape += 0.2 if width < NARROW else 0.0  # room for the legend below
        with drawing(width, max(width * shape, 1.6)) as figure:
            draw(figure)
            if self.options.titles:
                figure.suptitle(wrapped(title, width), x=0.01, ha="left", fontsize=9 if width < NARROW else 11)
            for ending in self.options.endings:
                save_figure(figure, self.place / f"{name}{ending}")
        self.written.append(Figure(title.replace("\n", ": "), self.place / f"{name}{self.options.endings[0]}"))


def overview(gathered: Gathered, path: Path, options: FigureOptions | None = None) -> Figure:
    """One picture: a row per setting with accuracy against rounds and time, and participation."""
    settings = gathered.settings[:SETTINGS]
    width = (options or FigureOptions()).width or 15.0
    with drawing(width, width * 0.29 * len(settings)) as figure:
        parts = figure.subfigures(len(settings), 1, squeeze=False)[:, 0]
        for part, setting in zip(parts, settings, strict=True):
            runs = _histories(gathered, setting)
            axes = part.subplots(1, 3)
            plot_curves(runs, axes[0], labels=gathered.labels)
            plot_curves(runs, axes[1], against="time", labels=gathered.labels)
            plot_participation(runs, axes[2], labels=gathered.labels)
            for axis in axes[1:]:
                axis.get_legend().remove()
            part.suptitle(wrapped(setting, width), x=0.01, ha="left")
        save_figure(figure, path)
    left = len(gathered.settings) - len(settings)
    return Figure(", ".join(settings[:1]) if len(settings) == 1 else f"{len(settings)} settings, {left} left out", path)


def all_figures(
    gathered: Gathered,
    folder: Path,
    options: FigureOptions | None = None,
    compared: Sequence[Comparison] = (),
) -> list[Figure]:
    """Every picture into a folder; the list names the first format. `compared` are metrics to draw as well."""
    folder.mkdir(parents=True, exist_ok=True)
    out = _Folder(folder, options or FigureOptions())
    columns = list(dict.fromkeys(COLUMNS.get(made.metric, "accuracy") for made in compared)) or ["accuracy"]
    for at, setting in enumerate(gathered.settings[:SETTINGS], 1):
        runs = _histories(gathered, setting)
        for column in columns:
            lead = "" if column == "accuracy" else f"{column}-"
            for against, words in (("rounds", "rounds"), ("time", "virtual time")):
                title = f"Test {column.replace('_', ' ')} against {words}\n{setting}"
                draw = _on_axes(plot_curves, runs, column=column, against=against, labels=gathered.labels)
                out.add(f"{lead}{against}-{at}", title, draw)
        draw = _on_axes(plot_participation, runs, labels=gathered.labels)
        out.add(f"asked-{at}", f"Participation\n{setting}", draw)
        for made in compared:
            _metric(out, gathered, made, setting, at)
        firsts = [runs[0] for runs in gathered.entries(setting).values() if runs[0].history.length]
        for number, run in enumerate(firsts[:MAPS], 1):
            _maps(out, gathered, run, f"cohorts-{at}-{number}")
    return out.written


def _on_axes(plot: Callable[..., Any], *what: Any, **how: Any) -> Callable[[Any], None]:
    """Something that draws one picture on a figure; in a narrow one the legend stands below."""

    def draw(figure: Any) -> None:
        axis = figure.subplots()
        plot(*what, axis, **how)
        key = axis.get_legend()
        if key is None or figure.get_figwidth() >= NARROW:
            return
        handles, names = axis.get_legend_handles_labels()
        title = key.get_title().get_text()
        key.remove()
        widest = max(len(n) for n in names) + 6
        room = max(1, int(figure.get_figwidth() * 15 / widest))
        figure.legend(
            handles, names, title=title or None, loc="outside lower center", ncols=min(room, len(names)), frameon=False
        )

    return draw


def _metric(out: _Folder, gathered: Gathered, made: Comparison, setting: str, at: int) -> None:
    found = next((s for s in made.settings if s.name == setting), None)
    if found is None or all(row.mean is None for row in found.rows):
        return
    draw = _on_axes(plot_metric, gathered.ordered(found), name=made.metric, labels=gathered.labels)
    tall = (1.2 + 0.25 * len(found.rows)) / out.options.inches
    out.add(f"metric-{made.metric}-{at}", f"{made.about.capitalize()}\n{setting}", draw, tall)


def _maps(out: _Folder, gathered: Gathered, run: Run, name: str) -> None:
    """Clients by rounds, once for each order of the clients that tells them apart; below each other where narrow."""
    found = cohort_map(run.folder, rows=CLIENTS)
    known = map_orders(found)
    orders = [n for n in _TRAITS if n in known] or known[:1]
    beside = out.options.inches >= 8 or out.options.width is None

    def draw(figure: Any) -> None:
        grid = (1, len(orders)) if beside else (len(orders), 1)
        for axis, order in zip(figure.subplots(*grid, squeeze=False).ravel(), orders, strict=True):
            plot_cohorts(found, axis, order=order)
        keys = outcome_keys(found)
        if keys:
            columns = len(keys) if figure.get_figwidth() >= NARROW else 3
            figure.legend(handles=keys, frameon=False, loc="outside lower center", ncols=columns)

    shown, total = len(found["clients"]), found["population"]
    some = f", the {shown} most often asked of {total:,} clients" if shown < total else ""
    title = f"Who was chosen when: {gathered.label(run.entry)}, seed {run.config.seed}\n{run.setting}{some}"
    wide = 13.0 if len(orders) == 3 else 4.5 * len(orders) + 1
    out.add(name, title, draw, 5.2 / wide if beside else 0.75 * len(orders), wide)


def _histories(gathered: Gathered, setting: str) -> dict[str, list[History]]:
    """The finished seeds of every entry; of an entry without any, one that has begun."""
    out: dict[str, list[History]] = {}
    for entry, runs in gathered.entries(setting).items():
        begun = [r.history for r in runs if r.history.length]
        done: list[History] = [r.history for r in runs if r.finished and r.history.length]
        if begun:
            out[entry] = done or [begun[0]]
    return out


def wrapped(text: str, inches: float) -> str:
    """A title in as many lines as it needs."""
    letters = max(20, int(inches * (15 if inches < NARROW else 12.5)))
    return "\n".join(part for line in text.split("\n") for part in textwrap.wrap(line, letters) or [""])


@contextmanager
def drawing(width: float, height: float) -> Iterator[Any]:
    """An empty figure in the style of reports; nothing global is changed."""
    import matplotlib
    from matplotlib.figure import Figure as Canvas

    small = {"font.size": 7.5, "legend.fontsize": 7, "legend.title_fontsize": 7}
    usual = {"font.size": 9, "legend.fontsize": 8, "legend.title_fontsize": 8}
    with matplotlib.rc_context({**_STYLE, **(small if width < NARROW else usual)}):
        yield Canvas(figsize=(width, height), layout="constrained", facecolor="white")


def save_figure(figure: Any, path: Path) -> None:
    """The same runs give the same bytes."""
    dated = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
    figure.savefig(path, metadata=dated.get(path.suffix.lower()))
