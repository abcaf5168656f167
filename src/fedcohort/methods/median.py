"""Coordinate-wise median of the updates.

    Dong Yin, Yudong Chen, Kannan Ramchandran, Peter Bartlett.
    Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates. ICML 2018.
    https://arxiv.org/abs/1803.01498   (option I)

    w+_j = w_j + median_k (w_k - w)_j                                                                    (1)

Departures from the paper
    * The median is over updates after local training, not over gradients.
    * Of an even number of rows the two middle values are averaged.
    * A client drawn m times by a selector that samples with replacement counts m times. Samples do not count.
    * Buffers and counters are merged by their median, too.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from fedcohort.methods._parts.robust import RobustMethod, by_columns
from fedcohort.methods.base import Double, Step, as_drawn
from fedcohort.protocols import Aggregation
from fedcohort.types import Model, Updates


class Median(RobustMethod):
    """The median of the updates, coordinate by coordinate: bounded while less than half of the rows are bad.

    Args:
        buffers: what becomes of float buffers: averaged, or as the server has them.

    >>> from fedcohort.testing import example_round
    >>> Median().aggregate(*example_round([[1.0, 5.0], [2.0, 6.0], [99.0, -7.0]])).model.params
    array([2., 5.], dtype=float32)
    """

    name: ClassVar[str] = "median"

    def combine(self, model: Model, updates: Updates, context: Aggregation) -> Step:
        """Eq. 1."""
        del model
        return Step(by_columns(middle, as_drawn(updates, context).delta), np.ones(len(updates), np.bool_))


def middle(slab: Double) -> Double:
    """Median of every column."""
    return np.asarray(np.median(slab, axis=0), np.float64)
