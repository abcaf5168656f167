"""Pictures of runs on axes: each function takes axes (or makes some), draws on them and returns them.

Runs are given as a mapping from a name to the histories of its seeds. The name of a selector decides colour, dash and
marker, as in every other picture. With several seeds a line is their mean, and the band around it the range of fewer
than five, else the 95 % bootstrap interval of the mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from fedcohort.errors import BadParameter, UnknownName
from fedcohort.experiment.metrics.paired import LEAST_SEEDS, spread_name
from fedcohort.looks import STEPS, Look, looks, time_unit
from fedcohort.report.plots import bands
from fedcohort.rounds.history import History
from fedcohort.rounds.history_view import AGAINST, label_axes, new_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from fedcohort.experiment.metrics.comparison import Setting

Runs = Mapping[str, Sequence[History] | History]
Step = Literal["post", "mid"] | None
MARKS = 8  # markers of a line


def plot_curves(
    runs: Runs,
    ax: Axes | None = None,
    *,
    column: str = "accuracy",
    against: str = "rounds",
    labels: Mapping[str, str] | None = None,
) -> Axes:
    """A column of the runs against "rounds" or virtual "time".

    >>> seeds = [History(2, [{"accuracy": a, "clock": 5.0}, {"accuracy": a + 0.1, "clock": 9.0}]) for a in (0.1, 0.2)]
    >>> axes = plot_curves({"oort": seeds}, against="time")
    >>> axes.get_xlabel(), axes.get_legend().get_title().get_text()
    ('virtual time (s)', 'mean and range of 2 seeds')
    """
    if against not in AGAINST:
        raise UnknownName.among("axis to draw against", against, AGAINST)
    found = {}
    for name, seeds in _seeds(runs).items():
        values = [h.column(column) for h in seeds]
        found[name] = bands.by_round(values) if against == "rounds" else bands.by_time([h.clock for h in seeds], values)
    longest = max((float(b.x[-1]) for b in found.values() if b.x.size), default=0.0)
    size, unit = time_unit(longest) if against == "time" else (1.0, "s")
    ax = new_axes() if ax is None else ax
    _draw(ax, found, labels, size, "post" if against == "time" else None)
    label_axes(ax, column, against, unit)
    return ax


def plot_participation(runs: Runs, ax: Axes | None = None, *, labels: Mapping[str, str] | None = None) -> Axes:
    """How often clients were asked, from the most to the least often asked.

    >>> axes = plot_participation({"oort": History(3, [{}, {}], [[0, 1], [1, 2]])})
    >>> axes.get_lines()[0].get_ydata().tolist()
    [2.0, 1.0, 1.0]
    """
    found = {name: bands.by_rank([h.participation() for h in seeds]) for name, seeds in _seeds(runs).items()}
    ax = new_axes() if ax is None else ax
    _draw(ax, found, labels, 1.0, "mid")
    from matplotlib.ticker import MaxNLocator

    ax.yaxis.set_major_locator(MaxNLocator(integer=True, steps=STEPS))
    ax.set(xlabel="clients, most often asked first", ylabel="times asked")
    return ax


def plot_metric(
    setting: Setting, ax: Axes | None = None, *, name: str = "", labels: Mapping[str, str] | None = None
) -> Axes:
    """One metric of every entry of a setting (of `fedcohort.experiment.compare`): the mean, its spread, every seed.

    >>> from fedcohort.experiment.metrics.comparison import Row, Setting
    >>> setting = Setting("my setting", "iid-v1", (Row("oort", {0: 0.4, 1: 0.6}, 0.5, 0.4, 0.6, 2),))
    >>> plot_metric(setting, name="terminal").get_xlabel()
    'terminal (mean and range of 2 seeds)'
    """
    ax = new_axes(6.4, 1.0 + 0.35 * len(setting.rows)) if ax is None else ax
    own = looks(row.entry for row in setting.rows)
    names = labels or {}
    for at, row in enumerate(setting.rows):
        colour = own[row.entry].colour
        values = [v for v in row.values.values() if v is not None]
        ax.plot(values, [at] * len(values), "|", color=colour, alpha=0.6, markersize=7)
        if row.mean is not None and row.low is not None and row.high is not None:
            ax.plot([row.low, row.high], [at, at], "-", color=colour, linewidth=1.8)
            marker = own[row.entry].line()["marker"]
            ax.plot([row.mean], [at], marker, color=colour, markersize=6)
    ax.set_yticks(range(len(setting.rows)), [names.get(row.entry, row.entry) for row in setting.rows])
    ax.set_ylim(len(setting.rows) - 0.5, -0.5)
    told = _note([row.count for row in setting.rows])
    ax.set_xlabel(f"{name.replace('_', ' ')} ({told})" if told else name.replace("_", " "))
    return ax


def name_lines(ax: Axes, counts: Sequence[int], **place: Any) -> None:
    """The legend, and above it what line and band are."""
    ax.legend(title=_note(counts) or None, frameon=False, alignment="left", **place)


def _note(counts: Sequence[int]) -> str:
    """What is drawn of so many seeds each."""
    if not counts or max(counts) < 2:
        return ""
    if len(set(counts)) == 1:
        return f"mean and {spread_name(counts[0])} of {counts[0]} seeds"
    kinds = {spread_name(n) for n in counts} - {""}
    if len(kinds) == 1:
        return f"mean and {kinds.pop()} over seeds"
    return f"mean and 95 % interval over seeds, range of fewer than {LEAST_SEEDS}"


def _seeds(runs: Runs) -> dict[str, list[History]]:
    found = {name: [given] if isinstance(given, History) else list(given) for name, given in runs.items()}
    for name, seeds in found.items():
        if not seeds or not all(isinstance(h, History) for h in seeds):
            raise BadParameter(
                f"runs[{name!r}]", "it must be a history or a list of them", 'use e.g. {"oort": [history]}'
            )
    return found


def _draw(ax: Axes, found: Mapping[str, bands.Band], labels: Mapping[str, str] | None, size: float, step: Step) -> None:
    own = looks(found)
    counts = [band.seeds for band in found.values()]
    for name, band in found.items():
        label = (labels or {}).get(name, name)
        if len(set(counts)) > 1:
            label += f" ({band.seeds} {'seed' if band.seeds == 1 else 'seeds'})"
        _line(ax, band, own[name], label, size, step)
    name_lines(ax, counts)


def _line(ax: Axes, band: bands.Band, own: Look, label: str, size: float, step: Step) -> None:
    every = max(1, band.x.size // MARKS)
    marks: dict[str, Any] = {
        "markevery": (own.marker * every // 8 if band.x.size > MARKS else 0, every),
        "markersize": 4,
    }
    style = f"steps-{step}" if step else "default"
    ax.plot(band.x / size, band.y, label=label, linewidth=1.6, drawstyle=style, **marks, **own.line())
    if band.low is not None and band.high is not None:
        shade: dict[str, Any] = {"color": own.colour, "alpha": 0.15, "linewidth": 0}
        ax.fill_between(band.x / size, band.low, band.high, step=step, **shade)
