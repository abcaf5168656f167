"""Geometric median of the updates: the point with the smallest sum of distances.

    Krishna Pillutla, Sham M. Kakade, Zaid Harchaoui.
    Robust Aggregation for Federated Learning. IEEE Transactions on Signal Processing 2022.
    https://arxiv.org/abs/1912.13445

With shares q_k of the rows x_k, found by the smoothed Weiszfeld iteration:

    minimise over v    sum_k q_k |v - x_k|                                                               (1)
    b_k = q_k / max(nu, |v - x_k|)             v <- sum_k b_k x_k / sum_k b_k                            (2)

Departures from the paper
    * Shares are equal by default: a malicious client may state any number of samples. `weighting="data"` is the
      paper's choice.
    * The iteration starts at the coordinate-wise median, not at the mean, and ends when v moves by less than
      `tolerance` times its mean distance to the rows, or after `iterations`. The paper stops after a few.
    * Buffers and counters are merged by their median.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from fedcohort.core.constraints import Count, NotNegative, Positive
from fedcohort.errors import checked
from fedcohort.methods._parts.robust import RobustMethod, by_columns, row_norms
from fedcohort.methods.base import Buffers, Double, Step, Weighting, shares, weighted_sum
from fedcohort.methods.median import middle
from fedcohort.protocols import Aggregation
from fedcohort.types import Model, Real, Updates


class GeometricMedian(RobustMethod):
    """The point with the smallest sum of distances to the updates: bounded while less than half of the weight is bad.

    Args:
        smoothing: keeps eq. 2 finite at a row [nu].
        iterations: steps of Weiszfeld's algorithm at most.
        tolerance: a relative step smaller than this ends it.
        weighting: whether rows count alike or by their samples.
        buffers: what becomes of float buffers: averaged, or as the server has them.

    >>> from fedcohort.testing import example_round
    >>> GeometricMedian().aggregate(*example_round([[0.0], [1.0], [100.0]])).model.params.round(3)
    array([1.], dtype=float32)
    """

    name: ClassVar[str] = "geometric-median"

    @checked
    def __init__(
        self,
        *,
        smoothing: Positive = 1e-6,  # [nu]
        iterations: Count = 100,
        tolerance: NotNegative = 1e-6,
        weighting: Weighting = "uniform",
        buffers: Buffers = "average",
    ) -> None:
        super().__init__(buffers=buffers)
        self.smoothing, self.iterations, self.tolerance = smoothing, iterations, tolerance
        self.weighting = weighting

    def combine(self, model: Model, updates: Updates, context: Aggregation) -> Step:
        """Iterate eq. 2."""
        del model
        share = shares(self.weighting, updates, context)
        point = by_columns(middle, updates.delta)
        done = 0
        while done < self.iterations:
            done += 1
            far = distances(point, updates.delta)
            pull = share / np.maximum(far, self.smoothing)
            moved = weighted_sum(pull / pull.sum(), updates.delta)
            stride = float(np.sqrt(np.square(moved - point).sum()))
            point = moved
            if stride <= self.tolerance * float(share @ far):
                break
        return Step(point, np.ones(len(updates), np.bool_), {"iterations": float(done)})


def distances(point: Double, delta: Real) -> Double:
    """|v - x_k| of every row."""
    return np.concatenate([row_norms((row.astype(np.float64) - point)[None]) for row in delta])
