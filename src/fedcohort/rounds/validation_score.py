"""The score of a round: the metric of the server's validation data that selectors learn from. Higher is better."""

from __future__ import annotations

import math
from collections.abc import Mapping

from fedcohort.errors import UnknownName

ACCURACY = "accuracy"
ERRORS = frozenset({"loss", "mae", "mse", "rmse", "gap", "distance"})  # lower is better: the sign is flipped


def score_of(found: Mapping[str, float], name: str) -> float:
    """The metric of this name as a score; NaN where it was not measured.

    >>> score_of({"accuracy": 0.8, "loss": 0.5}, "accuracy"), score_of({"accuracy": 0.8, "loss": 0.5}, "loss")
    (0.8, -0.5)
    """
    return as_metric(float(found.get(name, math.nan)), name)


def as_metric(score: float, name: str) -> float:
    """The metric of a score, and the other way round."""
    return -score if name in ERRORS else score


def check_score(found: Mapping[str, float], name: str) -> None:
    """Refuse the name of a metric that is not among those `found`."""
    if name in found:
        return
    rule, remedy = f"on validation data this task measures {', '.join(found)}", "name one of these"
    if not any(math.isfinite(value) for value in found.values()):
        rule, remedy = "this task has no validation data to measure it on", "give it some, or choose another task"
    raise UnknownName(f"score = {name!r}", rule, remedy)
