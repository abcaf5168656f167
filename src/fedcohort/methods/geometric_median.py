"""Geometric median of the updates: the point with the smallest sum of distances.

    Krishna Pillutla, Sham M. Kakade, Zaid Harchaoui.
    Robust Aggregation for Federated Learning. IEEE Transactions on Signal Processing 2022.
    https://arxiv.org/abs/1912.13445

With shares q_k of the rows x_k, found by the smoothed Weiszfeld iteration:

    minimise over v    sum_k q_k |v - x_k|                                                               (1)
    b_k = q_k / max(nu, |v - x_k|)             v <- sum_k b_k x_k / sum_k b_k                            (2)

Departures from the paper
    * Shares are equal by default: a liar may state any number of samples. `weighting="data"` is the paper's.
    * The iteration starts at the coordinate-wise median, not at the mean, and goes on until v moves by less than
      `tolerance` times its mean distance to the rows, or `iterations` are done. The paper stops after a few.
    * Buffers and counters are merged by their median.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from fedcohort.errors import check
from fedcohort.methods._parts.robust import Robust, by_columns, check_weighting, row_norms, shares
from fedcohort.methods.base import Double, Step, weighted_sum
from fedcohort.methods.median import middle
from fedcohort.protocols import Aggregation
from fedcohort.types import Model, Real, Updates


class GeometricMedian(Robust):
    """Eq. 1 by eq. 2: unmoved by less than half of the weight. The paper's symbol is given in brackets."""

    name: ClassVar[str] = "geometric-median"

    def __init__(
        self,
        *,
        smoothing: float = 1e-6,  # [nu]
        iterations: int = 100,
        tolerance: float = 1e-6,
        weighting: str = "uniform",
        buffers: str = "average",
    ) -> None:
        super().__init__(buffers=buffers)
        check(smoothing > 0, f"smoothing = {smoothing}", "the smoothing must be positive", "use 1e-6")
        check(iterations >= 1, f"iterations = {iterations}", "at least one iteration is needed", "use 100")
        check(tolerance >= 0, f"tolerance = {tolerance}", "the tolerance must not be negative", "use 1e-6")
        self.smoothing, self.iterations, self.tolerance = smoothing, iterations, tolerance
        self.weighting = check_weighting(weighting)

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
