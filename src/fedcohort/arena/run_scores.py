"""What one run is worth: six numbers from its history, up to the horizon.

The accuracy at a moment is that of the last model that was evaluated by then, and 0 before the first evaluation; a run
that ends early (its cap on rounds) keeps its last accuracy until the horizon. What happens after the horizon counts
for nothing.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcohort.core.constraints import Positive
from fedcohort.errors import checked
from fedcohort.experiment.metrics.run_metrics import spread

CURVE = 60  # points of a curve that are kept
Double = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Score:
    """One score by name: what it is, and whether more is better."""

    name: str
    about: str
    better: int  # +1: higher, -1: lower
    logarithmic: bool = False  # differences are of logarithms


_ALL = (
    Score("anytime", "area under accuracy against virtual time up to the horizon, divided by the horizon", 1),
    Score("final", "accuracy at the horizon", 1),
    Score("time_to_target", "virtual seconds until the target accuracy; not reached is ranked last", -1, True),
    Score("worst_tenth", "mean accuracy of the worst tenth of clients at the horizon", 1),
    Score("traffic", "bytes both ways up to the horizon", -1, True),
    Score("own_ms", "milliseconds per round that the selector itself computes", -1, True),
)
SCORES: dict[str, Score] = {s.name: s for s in _ALL}
PRIMARY = "anytime"


@dataclass(frozen=True, slots=True)
class RunScores:
    """The scores of one run. None: the target was not reached, or the number was not measured."""

    anytime: float
    final: float
    time_to_target: float | None
    worst_tenth: float | None
    traffic: float
    own_ms: float | None
    rounds: int  # that ended by the horizon

    def data(self) -> dict[str, Any]:
        """As plain values, rounded to what can be compared."""
        return {k: v if v is None or isinstance(v, int) else float(f"{v:.7g}") for k, v in asdict(self).items()}


@checked
def anytime(clock: ArrayLike, accuracy: ArrayLike, horizon: Positive) -> float:
    """The area under the step curve up to the horizon, divided by the horizon.

    >>> anytime([2.0, 6.0], [0.5, 1.0], horizon=10.0)  # 2 s at 0, 4 s at 0.5, 4 s at 1
    0.6
    """
    t, a = _evaluated(clock, accuracy)
    inside = t < horizon
    t, a = t[inside], a[inside]
    return float(np.sum(a * np.diff(np.append(t, horizon))) / horizon)


def final_accuracy(clock: ArrayLike, accuracy: ArrayLike, horizon: float) -> float:
    """The accuracy of the last model that was evaluated by the horizon; 0 where none was.

    >>> final_accuracy([2.0, 6.0], [0.5, 1.0], horizon=5.0)
    0.5
    """
    t, a = _evaluated(clock, accuracy)
    inside = np.flatnonzero(t <= horizon)
    return float(a[inside[-1]]) if inside.size else 0.0


def time_to_target(clock: ArrayLike, accuracy: ArrayLike, horizon: float, target: float) -> float | None:
    """Virtual seconds until the target; None where it was not reached by the horizon.

    >>> time_to_target([2.0, 6.0], [0.5, 1.0], horizon=10.0, target=0.9)
    6.0
    """
    t, a = _evaluated(clock, accuracy)
    hit = np.flatnonzero((a >= target) & (t <= horizon))
    return float(t[hit[0]]) if hit.size else None


def worst_tenth(clients: ArrayLike | None) -> float | None:
    """Mean accuracy of the worst tenth of clients; None where nothing was measured."""
    found = None if clients is None else spread(clients)
    return None if found is None else found.worst_tenth


def thinned(clock: ArrayLike, accuracy: ArrayLike, horizon: float, points: int = CURVE) -> list[list[float]]:
    """The curve up to the horizon as [seconds, accuracy], at most so many points, first and last included."""
    t, a = _evaluated(clock, accuracy)
    inside = np.flatnonzero(t <= horizon)
    if inside.size > points:
        inside = inside[np.unique(np.linspace(0, inside.size - 1, points).round().astype(np.int64))]
    return [[float(f"{t[i]:.5g}"), round(float(a[i]), 4)] for i in inside]


def _evaluated(clock: ArrayLike, accuracy: ArrayLike) -> tuple[Double, Double]:
    """Only the rounds in which the model was evaluated."""
    t, a = np.asarray(clock, np.float64), np.asarray(accuracy, np.float64)
    known = np.isfinite(a)
    return t[known], a[known]


def order_value(name: str, value: float | None) -> float:
    """A number of which larger is better; what was not reached is below everything else."""
    if value is None or math.isnan(value):
        return -math.inf
    score = SCORES[name]
    return score.better * (math.log(max(value, 1e-9)) if score.logarithmic else value)
