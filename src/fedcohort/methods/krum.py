"""Krum and Multi-Krum: trust the updates that have near neighbours.

    Peva Blanchard, El Mahdi El Mhamdi, Rachid Guerraoui, Julien Stainer.
    Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent. NeurIPS 2017.
    https://arxiv.org/abs/1703.02757

With m rows, of which at most f are Byzantine, and i -> j when x_j is among the m - f - 2 rows nearest to x_i:

    s(i) = sum_{i -> j} |x_i - x_j|^2                                                                    (1)
    Krum         w+ = w + x_{i*},   i* = argmin s                                                        (2)
    Multi-Krum   w+ = w + mean of the q rows with the smallest s                                         (3)

Departures from the paper
    * x are updates after local training, not gradients.
    * f = ceil(byzantine_fraction * m), but never more than (m - 3) / 2 (rounded down): the paper needs m > 2 f + 2.
    * q is m - f unless given. Scores are computed once, as in the paper, not again after each choice.
    * Fewer than three rows have no majority: all of them are averaged.
    * Equal scores: the lower slot. A client drawn several times counts once.
    * Only the chosen rows are accepted; their buffers and counters are merged by the median.
"""

from __future__ import annotations

import math
from typing import Annotated, ClassVar

import numpy as np

from fedcohort.core.constraints import Count, Interval
from fedcohort.errors import checked
from fedcohort.methods._parts.robust import RobustMethod, squared_distances
from fedcohort.methods.base import Buffers, Double, Step, weighted_sum
from fedcohort.protocols import Aggregation
from fedcohort.types import Model, Real, Updates

ByzantineFraction = Annotated[float, Interval(0, 0.5, ends="[)")]


class MultiKrum(RobustMethod):
    """Average the updates that have the nearest neighbours, eq. 3.

    Args:
        byzantine_fraction: share of rows that may be arbitrary [f / m].
        keep: how many rows are averaged; None: all but that share [q].
        buffers: what becomes of float buffers: averaged, or as the server has them.

    >>> from fedcohort.testing import example_round
    >>> MultiKrum(keep=2).aggregate(*example_round([[1.0], [1.2], [9.0], [1.5]])).accepted
    array([ True,  True, False, False])
    """

    name: ClassVar[str] = "multi-krum"

    @checked
    def __init__(
        self,
        *,
        byzantine_fraction: ByzantineFraction = 0.3,  # [f / m]
        keep: Count | None = None,  # [q]
        buffers: Buffers = "average",
    ) -> None:
        super().__init__(buffers=buffers)
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
    """Take the one update with the nearest neighbours, eq. 2.

    Args:
        byzantine_fraction: share of rows that may be arbitrary [f / m].
        buffers: what becomes of float buffers: averaged, or as the server has them.

    >>> from fedcohort.testing import example_round
    >>> Krum().aggregate(*example_round([[1.0], [1.25], [9.0], [2.0]])).model.params
    array([1.25], dtype=float32)
    """

    name: ClassVar[str] = "krum"

    @checked
    def __init__(self, *, byzantine_fraction: ByzantineFraction = 0.3, buffers: Buffers = "average") -> None:  # [f / m]
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
