"""What a run leaves behind: one row of numbers per round, and who was asked."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcohort.core.stats import jain
from fedcohort.types import Index


@dataclass
class History:
    """Rows in round order. Row r has at least: round, clock, seconds, accuracy, loss, score, asked and outcomes."""

    population: int
    rows: list[dict[str, float]] = field(default_factory=list)
    cohorts: list[Index] = field(default_factory=list)
    reasons: list[dict[int, str]] = field(default_factory=list)

    def column(self, name: str) -> NDArray[np.float64]:
        """One number per round; NaN where it was not measured."""
        return np.array([_number(row.get(name)) for row in self.rows], np.float64)

    @property
    def accuracy(self) -> NDArray[np.float64]:
        """Test accuracy per round."""
        return self.column("accuracy")

    @property
    def clock(self) -> NDArray[np.float64]:
        """Virtual seconds at the end of each round."""
        return self.column("clock")

    def participation(self) -> Index:
        """How often each client was asked."""
        counts = np.zeros(self.population, np.int64)
        for cohort in self.cohorts:
            np.add.at(counts, cohort, 1)
        return counts

    def fairness(self) -> float:
        """Jain's index of participation."""
        return jain(self.participation().astype(np.float64))

    def reached(self, target: float, metric: str = "accuracy") -> tuple[int, float] | None:
        """(round, virtual seconds) at which the metric first reached the target, or None: never."""
        hit = np.flatnonzero(self.column(metric) >= target)
        return (int(hit[0]), float(self.clock[hit[0]])) if hit.size else None


def _number(value: Any) -> float:
    return float("nan") if value is None else float(value)
