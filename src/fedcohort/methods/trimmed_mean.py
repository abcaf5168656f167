"""Coordinate-wise trimmed mean of the updates.

    Dong Yin, Yudong Chen, Kannan Ramchandran, Peter Bartlett.
    Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates. ICML 2018.
    https://arxiv.org/abs/1803.01498   (option II)

Of m rows, in every coordinate j, the b largest and the b smallest values are dropped and the rest averaged:

    w+_j = w_j + (1 / (m - 2 b)) sum of the kept (w_k - w)_j          b = floor(beta m)                   (1)

Departures from the paper
    * The mean is over updates after local training, not over gradients.
    * beta is a share of those that returned. The paper wants it at least as large as the share of malicious clients; in
      a small cohort that share varies, so the default is 0.3 and not the 0.2 that one may expect.
    * A client drawn m times by a selector that samples with replacement counts m times. Samples do not count.
    * Buffers and counters are merged by their median.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import numpy as np

from fedcohort.core.constraints import Interval
from fedcohort.errors import checked
from fedcohort.methods._parts.robust import RobustMethod, by_columns
from fedcohort.methods.base import Buffers, Double, Step, as_drawn
from fedcohort.protocols import Aggregation
from fedcohort.types import Model, Updates

Trim = Annotated[float, Interval(0, 0.5, ends="[)")]


class TrimmedMean(RobustMethod):
    """The mean of the updates without the largest and smallest values of each coordinate.

    Args:
        trim: share dropped at either end; as many bad rows are tolerated.
        buffers: what becomes of float buffers: averaged, or as the server has them.

    >>> from fedcohort.testing import example_round
    >>> TrimmedMean(trim=0.25).aggregate(*example_round([[1.0], [2.0], [4.0], [99.0]])).model.params
    array([3.], dtype=float32)
    """

    name: ClassVar[str] = "trimmed-mean"

    @checked
    def __init__(self, *, trim: Trim = 0.3, buffers: Buffers = "average") -> None:  # [beta]
        super().__init__(buffers=buffers)
        self.trim = trim

    def combine(self, model: Model, updates: Updates, context: Aggregation) -> Step:
        """Eq. 1."""
        del model
        rows = as_drawn(updates, context).delta
        cut = int(self.trim * rows.shape[0] + 1e-9)

        def rule(slab: Double) -> Double:
            inner = np.sort(slab, axis=0)[cut : slab.shape[0] - cut]
            return np.asarray(inner.mean(axis=0), np.float64)

        return Step(by_columns(rule, rows), np.ones(len(updates), np.bool_), {"trimmed": float(cut)})
