"""What methods share that must survive clients that send anything at all.

A malicious client may state any number of samples, so rows count alike unless a method says otherwise; and it sends
buffers and counters too, so these are merged by their median instead of their mean and maximum.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fedcohort.core.finite import finite_or
from fedcohort.methods.base import Double, MethodBase
from fedcohort.types import Model, Real, Updates

_COLUMNS = 1 << 16  # columns in double precision at a time


class RobustMethod(MethodBase):
    """Base of the robust methods: buffers and counters by their median over the rows that were kept."""

    def merge(self, model: Model, updates: Updates) -> tuple[Real, NDArray[np.int64]]:
        """Median buffers, or the server's; lower-median counters that never fall below the server's."""
        buffers, counters = model.buffers, model.counters
        if updates.counters is not None and updates.counters.size:
            middle = (len(updates) - 1) // 2
            counters = np.maximum(counters, np.sort(updates.counters, axis=0)[middle])
        if self.buffers == "average" and updates.buffers is not None and updates.buffers.size:
            middle_one = np.median(updates.buffers.astype(np.float64), axis=0).astype(np.float32)
            buffers = finite_or(middle_one, model.buffers)
        return buffers, counters


def by_columns(rule: Callable[[Double], Double], matrix: Real) -> Double:
    """A rule from (m, columns) to (columns,), applied to a slab of columns at a time."""
    out = np.empty(matrix.shape[1])
    for start in range(0, matrix.shape[1], _COLUMNS):
        slab = slice(start, start + _COLUMNS)
        out[slab] = rule(matrix[:, slab].astype(np.float64))
    return out


def row_norms(matrix: Real) -> Double:
    """Euclidean length of every row, in double precision."""
    return np.sqrt([float(np.square(row.astype(np.float64)).sum()) for row in matrix])


def squared_distances(matrix: Real) -> Double:
    """|x_i - x_j|^2 of all pairs, from the differences themselves: no cancellation."""
    m = matrix.shape[0]
    out = np.zeros((m, m))
    for i in range(m):
        here = matrix[i].astype(np.float64)
        for j in range(i + 1, m):
            out[i, j] = out[j, i] = float(np.square(matrix[j].astype(np.float64) - here).sum())
    return out
