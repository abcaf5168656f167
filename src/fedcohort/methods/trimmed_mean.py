"""Coordinate-wise trimmed mean of the updates.

    Dong Yin, Yudong Chen, Kannan Ramchandran, Peter Bartlett.
    Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates. ICML 2018.
    https://arxiv.org/abs/1803.01498   (option II)

Of m rows, in every coordinate j, the b largest and the b smallest values are dropped and the rest averaged:

    w+_j = w_j + (1 / (m - 2 b)) sum of the kept (w_k - w)_j          b = floor(beta m)                   (1)

Departures from the paper
    * The mean is over updates after local training, not over gradients.
    * beta is a share of those that returned. The paper wants it at least as large as the share of liars; in a small
      cohort that share varies, so that the default is 0.3 and not the 0.2 that one may expect.
    * A client drawn m times by a selector that samples with replacement counts m times. Samples do not count.
    * Buffers and counters are merged by their median.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from fedcohort.errors import check
from fedcohort.methods._parts.robust import Robust, by_columns, repeated
from fedcohort.methods.base import Double, Step
from fedcohort.protocols import Aggregation
from fedcohort.types import Model, Updates


class TrimmedMean(Robust):
    """Eq. 1: unmoved by up to `trim` of the rows. The paper's symbol is given in brackets."""

    name: ClassVar[str] = "trimmed-mean"

    def __init__(self, *, trim: float = 0.3, buffers: str = "average") -> None:  # [beta]
        super().__init__(buffers=buffers)
        check(0 <= trim < 0.5, f"trim = {trim}", "the trimmed share must be in [0, 0.5)", "use 0.3")
        self.trim = trim

    def combine(self, model: Model, updates: Updates, context: Aggregation) -> Step:
        """Eq. 1."""
        del model
        rows = repeated(updates, context)
        cut = int(self.trim * rows.shape[0] + 1e-9)

        def rule(slab: Double) -> Double:
            inner = np.sort(slab, axis=0)[cut : slab.shape[0] - cut]
            return np.asarray(inner.mean(axis=0), np.float64)

        return Step(by_columns(rule, rows), np.ones(len(updates), np.bool_), {"trimmed": float(cut)})
