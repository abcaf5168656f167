"""Ledger, eq. 7: how the last layer of an update differs from the others', in a few numbers."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcohort.core.rng import bits_at
from fedcohort.selectors._parts.ledger_quality import lengths
from fedcohort.types import Index

Double = NDArray[np.float64]
LONGEST = 3.0  # median lengths


def deviation(rows: NDArray[Any], width: int) -> Double:
    """Rows cut to three median lengths, minus their mean, in units of the median deviation, sketched to `width`."""
    length = lengths(rows)
    cut = np.minimum(1.0, LONGEST * np.median(length) / np.maximum(length, 1e-300))
    off = rows * cut[:, None]
    off -= off.mean(axis=0)
    scale = float(np.median(lengths(off)))
    return count_sketch(off / scale, width) if scale > 0 else np.zeros((rows.shape[0], width))


def count_sketch(rows: Double, width: int) -> Double:
    """Every column added, with a random sign, to one of `width` buckets: inner products stay what they are on average.

    >>> count_sketch(np.array([[3.0, 4.0]]), 4).tolist()
    [[3.0, 4.0, 0.0, 0.0]]
    """
    out = np.zeros((rows.shape[0], width))
    if rows.shape[1] <= width:
        out[:, : rows.shape[1]] = rows
        return out
    order, sign, start = _buckets(rows.shape[1], width)
    filled = np.flatnonzero(np.diff(start))
    out[:, filled] = np.add.reduceat(rows[:, order] * sign, start[filled], axis=1)
    return out


@lru_cache(maxsize=8)
def _buckets(columns: int, width: int) -> tuple[Index, Double, Index]:
    """The columns in the order of their buckets, their signs, and where each bucket starts."""
    bits = bits_at(0, "ledger-sketch", 0, np.arange(columns))
    bucket = (bits >> np.uint64(1)) % np.uint64(width)
    order = np.argsort(bucket, kind="stable")
    sign = np.where(bits & np.uint64(1), 1.0, -1.0)[order]
    return order, sign, np.searchsorted(bucket[order], np.arange(width + 1)).astype(np.int64)
