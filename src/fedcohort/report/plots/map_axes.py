"""Who was chosen when, on axes: clients by rounds, in the order of a trait that tells them apart."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedcohort.errors import UnknownName
from fedcohort.looks import OUTCOMES as SHADES
from fedcohort.looks import STEPS
from fedcohort.report.views import OUTCOMES, cohort_map
from fedcohort.rounds.history_view import new_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CLIENTS = 400  # rows of a cohort map
ORDERS = {
    "skew": "clients, from even to skewed",
    "noise": "clients, from clean to noisy labels",
    "speed": "clients, from fast to slow",
    "samples": "clients, from few to many samples",
    "asked": "clients, most often asked first",
    "slot": "clients by slot",
}


def plot_cohorts(run: str | Path | Mapping[str, Any], ax: Axes | None = None, *, order: str | None = None) -> Axes:
    """Who was asked in which round, with what outcome; `run` is a run folder, or `views.cohort_map` of one.

    `order` is skew, noise, speed, samples, asked or slot; by default the first of these that tells clients apart.

    >>> import fedcohort as fc
    >>> from tempfile import mkdtemp
    >>> folder = mkdtemp() + "/run"
    >>> done = fc.simulate("oort", task="quadratic", rounds=3, cohort_size=2, out=folder)
    >>> plot_cohorts(folder, order="slot").get_ylabel()
    'clients by slot'
    """
    found = run if isinstance(run, Mapping) else cohort_map(Path(run), rows=CLIENTS)
    known = map_orders(found)
    name = known[0] if order is None else order
    if name not in known:
        raise UnknownName.among("order that tells the clients apart", name, known)
    ax = new_axes(6.4, 4.4) if ax is None else ax
    from matplotlib.colors import ListedColormap
    from matplotlib.ticker import MaxNLocator

    place = np.empty(len(found["clients"]), np.int64)
    place[found["orders"][name]] = np.arange(place.size)
    first = found["first"]
    picture = np.full((max(place.size, 1), max(found["rounds"], 1)), -1.0)
    for t, (rows, codes) in enumerate(zip(found["asked"], found["outcomes"], strict=True)):
        picture[place[rows], t] = [float(c) for c in codes]
    shades = ListedColormap(["#f1f3f5", *SHADES])
    extent = (first - 0.5, first + picture.shape[1] - 0.5, place.size, 0)
    ax.imshow(picture, aspect="auto", cmap=shades, vmin=-1.5, vmax=5.5, interpolation="nearest", extent=extent)
    ax.grid(False)
    ax.set_yticks([])
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, steps=STEPS))
    ax.set(xlabel="round", ylabel=ORDERS[name])
    return ax


def map_orders(found: Mapping[str, Any]) -> list[str]:
    """The orders that this map has, the most telling first."""
    return [name for name in ORDERS if name in found["orders"]]


def outcome_keys(found: Mapping[str, Any]) -> list[Any]:
    """Handles for a legend: the outcomes that occur."""
    from matplotlib.patches import Patch

    used = sorted({int(c) for codes in found["outcomes"] for c in codes})
    return [Patch(color=SHADES[c], label=OUTCOMES[c]) for c in used]
