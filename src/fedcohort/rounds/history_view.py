"""A history to look at: as a curve in matplotlib, as a table for pandas, as a few lines for a notebook."""

from __future__ import annotations

import importlib.util
import sys
from html import escape
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedcohort.errors import MissingExtra, UnknownName
from fedcohort.looks import INK, PALE, STEPS, look, time_text, time_unit
from fedcohort.types import Index

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Double = NDArray[np.float64]
AGAINST = ("rounds", "time")
SHARES = ("accuracy", "macro_f1", "f1")  # drawn in percent
_WIDE, _HIGH = 240, 64  # pixels of the small curve


class Told(Protocol):
    """What is needed of a `History`."""

    population: int
    rows: list[dict[str, Any]]
    cohorts: list[Index]

    def column(self, name: str) -> Double:
        """One number per round."""
        ...

    @property
    def accuracy(self) -> Double:
        """Test accuracy per round."""
        ...

    @property
    def clock(self) -> Double:
        """Virtual seconds at the end of each round."""
        ...

    def participation(self) -> Index:
        """How often each client was asked."""
        ...

    def fairness(self) -> float:
        """Jain's index of participation."""
        ...


def new_axes(width: float = 6.4, height: float = 4.0) -> Axes:
    """Empty axes. Where pyplot is at work they are its own, so that it shows them; the backend stays what it is."""
    if "matplotlib.pyplot" in sys.modules or "ipykernel" in sys.modules:
        from matplotlib import pyplot

        made: Axes = pyplot.subplots(figsize=(width, height), layout="constrained")[1]
        return made
    from matplotlib.figure import Figure

    found: Axes = Figure(figsize=(width, height), layout="constrained").subplots()
    return found


def label_axes(ax: Axes, column: str, against: str, unit: str = "s") -> None:
    """Names of both axes, and percent where the column is a share."""
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    name = f"test {column}" if column in ("accuracy", "loss") else column.replace("_", " ")
    ax.set(xlabel="round" if against == "rounds" else f"virtual time ({unit})", ylabel=name)
    ax.xaxis.set_major_locator(MaxNLocator(integer=against == "rounds", steps=STEPS))
    if column in SHARES:
        ax.yaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))


def plot_history(history: Any, ax: Axes | None, column: str, against: str, label: str | None) -> Axes:
    """One column of a run against rounds or virtual time; see `History.plot`."""
    if against not in AGAINST:
        raise UnknownName.among("axis to draw against", against, AGAINST)
    known = sorted(history.rows.names)
    if history.rows and column not in known:
        raise UnknownName.among("column", column, known)
    y = history.column(column)
    x = np.arange(float(y.size)) if against == "rounds" else history.clock
    keep = np.isfinite(y) & np.isfinite(x)
    x, y = x[keep], y[keep]
    size, unit = time_unit(float(x[-1])) if against == "time" and x.size else (1.0, "s")
    ax = new_axes() if ax is None else ax
    style = look(label or "").line() | {"markevery": max(1, x.size // 8), "markersize": 4, "linewidth": 1.8}
    ax.plot(x / size, y, drawstyle="steps-post" if against == "time" else "default", label=label, **style)
    label_axes(ax, column, against, unit)
    if label is not None:
        ax.legend(frameon=False)
    return ax


def frame(history: Any) -> Any:
    """One row per round as a pandas.DataFrame."""
    if importlib.util.find_spec("pandas") is None:
        raise MissingExtra("to_pandas()", "pandas is not installed", "pip install pandas")
    import pandas as pd

    index = pd.Index([int(row.get("round", at)) for at, row in enumerate(history.rows)], name="round")
    rows = [{k: v for k, v in row.items() if k != "round"} for row in history.rows]
    made = pd.DataFrame(rows, index=index)
    if len(history.cohorts) == len(rows):
        made["cohort"] = pd.Series([np.asarray(c).tolist() for c in history.cohorts], index=index, dtype=object)
    return made


def facts(history: Any) -> dict[str, str]:
    """What one wants to know first."""
    accuracy, clock = history.accuracy, history.clock
    known = np.flatnonzero(np.isfinite(accuracy))
    out = {"rounds": str(len(history.rows)), "clients": f"{history.population:,}"}
    if known.size:
        best = int(known[np.argmax(accuracy[known])])
        out["accuracy"] = f"{accuracy[known[-1]]:.1%} (best {accuracy[best]:.1%} in round {best})"
    if clock.size:
        out["virtual time"] = time_text(float(clock[-1]))
    counts = history.participation()
    if counts.sum():
        out["clients asked"] = f"{(counts > 0).mean():.0%}, Jain's index {history.fairness():.2f}"
    return out


def html(history: Any) -> str:
    """The facts and a small curve, for notebooks."""
    rows = "".join(
        f"<tr><th style='text-align:left'>{escape(name)}</th><td style='text-align:left'>{escape(text)}</td></tr>"
        for name, text in facts(history).items()
    )
    return f"<div>{_sparkline(history.accuracy)}<table>{rows}</table></div>"


def _sparkline(values: Double) -> str:
    """Accuracy over rounds as a line, without axes."""
    at = np.flatnonzero(np.isfinite(values))
    if at.size < 2:
        return ""
    low, high = float(values[at].min()), float(values[at].max())
    x = 2 + (_WIDE - 4) * at / max(at[-1], 1)
    y = _HIGH - 2 - (_HIGH - 4) * (values[at] - low) / max(high - low, 1e-12)
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))
    words = f"accuracy from {values[at[0]]:.1%} to {values[at[-1]]:.1%}"
    return (
        f"<svg width='{_WIDE}' height='{_HIGH}' role='img' aria-label='{words}'><title>{words}</title>"
        f"<line x1='0' x2='{_WIDE}' y1='{_HIGH - 1}' y2='{_HIGH - 1}' stroke='{PALE}'/>"
        f"<polyline points='{points}' fill='none' stroke='{INK}' stroke-width='1.5'/></svg>"
    )
