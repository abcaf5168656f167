"""When a run ends before its last round: at a target, or when nothing has become better for a while."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedcohort.rounds.validation_score import ACCURACY, as_metric


@dataclass(frozen=True, slots=True)
class Stopping:
    """The rule, on scores of validation data; 0 switches either part off. Rounds are counted from 0, as in the journal.

    >>> Stopping(target=0.8).reason([0.5, 0.7, 0.82])
    'target: validation accuracy 0.8200 reached 0.8 after 3 rounds'
    >>> Stopping(patience=2).reason([0.5, 0.7, 0.6, 0.7])
    'patience: no better validation accuracy than 0.7000 (round 1) in 2 rounds'
    """

    target: float = 0.0
    patience: int = 0
    metric: str = ACCURACY  # what the scores are

    def reason(self, scores: Sequence[float]) -> str:
        """Why a run with these scores ends now; empty: it does not. Rounds without a score (NaN) do not count."""
        x = np.asarray(scores, np.float64)
        known = np.flatnonzero(np.isfinite(x))
        if not known.size or known[-1] != x.size - 1:
            return ""
        if self.target and x[-1] >= self.target:
            return f"target: validation {self.metric} {x[-1]:.4f} reached {self.target:g} after {_rounds(x.size)}"
        best = int(np.argmax(x[known]))
        if self.patience and known.size - 1 - best >= self.patience:
            top = f"{as_metric(x[known[best]], self.metric):.4f} (round {known[best]})"
            return f"patience: no better validation {self.metric} than {top} in {_rounds(self.patience)}"
        return ""


def _rounds(count: int) -> str:
    return "1 round" if count == 1 else f"{count} rounds"
