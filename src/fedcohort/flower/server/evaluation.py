"""What the server measures of its model after a round, and the score among it that a selector may learn from."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from typing import Any

from flwr.app import ArrayRecord, MetricRecord

from fedcohort.errors import check
from fedcohort.rounds.validation_score import as_metric

log = logging.getLogger("flwr")
EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


def evaluated(evaluate_fn: EvaluateFn | None, index: int, arrays: ArrayRecord) -> MetricRecord | None:
    """What the server's own evaluation finds."""
    found = None if evaluate_fn is None else evaluate_fn(index, arrays)
    check(
        found is None or isinstance(found, Mapping),
        f"evaluate_fn returned {type(found).__name__}",
        "it must return metrics by name",
        "write: return MetricRecord({'accuracy': 0.9})",
    )
    return found


class RoundScore:
    """The metric of this name, higher is better: the server's, else that of federated evaluation, else NaN."""

    def __init__(self, name: str) -> None:
        self.name, self._noted = name, False

    def __call__(self, found: Mapping[str, Any]) -> float:
        """The score among metrics such as "server.accuracy"; says once that there is none where others are."""
        given = (found.get(f"{side}.{self.name}") for side in ("server", "evaluate"))
        score = next((float(v) for v in given if isinstance(v, int | float)), math.nan)
        others = sorted({k.partition(".")[2] for k in found if k.startswith(("server.", "evaluate."))})
        if math.isnan(score) and others and not self._noted:
            self._noted = True
            log.warning("no score: %r is not a number among %s; set score=NAME", self.name, ", ".join(others))
        return as_metric(score, self.name)
