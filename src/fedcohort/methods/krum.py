"""Krum and Multi-Krum: trust the updates that have near neighbours.

    Peva Blanchard, El Mahdi El Mhamdi, Rachid Guerraoui, Julien Stainer.
    Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent. NeurIPS 2017.
    https://arxiv.org/abs/1703.02757

With m rows, of which at most f lie, and i -> j when x_j is among the m - f - 2 rows nearest to x_i:

    s(i) = sum_{i -> j} |x_i - x_j|^2                                                                    (1)
    Krum         w+ = w + x_{i*},   i* = argmin s                                                        (2)
    Multi-Krum   w+ = w + mean of the q rows with the smallest s                                         (3)

Departures from the paper
    * x are updates after local training, not gradients.
    * f = ceil(byzantine_fraction * m), but never more than (m - 3) / 2 (rounded down): the paper needs m > 2 f + 2.
    * q is m - f unless given. Scores are computed once, as in the paper, not again after each choice.
    * Fewer than three rows know no majority: all of them are averaged.
    * Equal scores: the lower slot. A client drawn several times counts once.
    * Only the chosen rows are accepted; their buffers and counters are merged by the median.
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from fedcohort.errors import check
from fedcohort.methods._parts.robust import Robust, squared_distances
from fedcohort.methods.base import Double, Step, weighted_sum
from fedcohort.protocols import Aggregation
from fedcohort.types import Model, Real, Updates


class MultiKrum(Robust):
    """Eq. 3. The paper's symbols are given in brackets."""

    name: ClassVar[str] = "multi-krum"

    def __init__(
        self,
        *,
        byzantine_fraction: float = 0.3,  # [f / m] share of rows that may lie
        keep: int | None = None,  # [q] rows to average; None: all but f
        buffers: str = "average",
    ) -> None:
        super().__init__(buffers=buffers)
        check(
            0 <= byzantine_fraction < 0.5,
            f"byzantine_fraction = {byzantine_fraction}",
            "the share must be in [0, 0.5)",
            "use 0.3",
        )
        check(keep is None or keep >= 1, f"keep = {keep}", "at least one row must be kept", "use None or 1 and more")
        self.byzantine_fraction, self.keep = byzantine_fraction, keep

    def combine(self, model: Model, updates: Updates, context: Aggregation) -> Step:
        """Score, choose, average plainly."""
        del model, context
        m = len(updates)
        kept = np.ones(m, np.bool_)
        if m >= 3:
            f = tolerated(m, self.byzantine_fraction)
            q = min(m, m - f if self.keep is None else self.keep)
            best = np.argsort(scores(updates.delta, f), kind="stable")[:q]
            kept = np.isin(np.arange(m), best)
        count = int(kept.sum())
        change = weighted_sum(np.full(count, 1.0 / count), updates.delta[kept])
        return Step(change, kept, {"kept": float(count)})


class Krum(MultiKrum):
    """Eq. 2: one row decides."""

    name: ClassVar[str] = "krum"

    def __init__(self, *, byzantine_fraction: float = 0.3, buffers: str = "average") -> None:  # [f / m]
        super().__init__(byzantine_fraction=byzantine_fraction, keep=1, buffers=buffers)


def tolerated(m: int, byzantine_fraction: float) -> int:
    """f for m rows."""
    return max(0, min(math.ceil(byzantine_fraction * m - 1e-9), (m - 3) // 2))


def scores(delta: Real, f: int) -> Double:
    """Eq. 1, for at least three rows."""
    m = delta.shape[0]
    distance = squared_distances(delta)
    np.fill_diagonal(distance, np.inf)
    near = np.sort(distance, axis=1)[:, : max(1, m - f - 2)]
    return np.asarray(near.sum(axis=1), np.float64)
