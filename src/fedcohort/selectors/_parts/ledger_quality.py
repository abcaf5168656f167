"""Ledger, eq. 1 and 2: the share of places that each client is owed, and what its reports say about its quality."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcohort.core import draw
from fedcohort.types import Real

Double = NDArray[np.float64]
FLOOR = 0.05  # nobody's quality falls below this
MARGIN = 0.05  # of p: as much is normal
RIDGE = 0.1  # lambda of beta
LARGEST = 1e6  # of what a report may say, in units of the median


def inclusion(quality: Real, k: int) -> Real:
    """Eq. 1: shares proportional to quality, at most 1 each, that sum to k; one pass where nobody reaches 1.

    >>> inclusion(np.array([1.0, 1.0, 0.5]), 1).tolist()
    [0.4, 0.4, 0.2]
    """
    total = float(quality.sum(dtype=np.float64))
    if quality.size > k and k * float(quality.max()) <= total:
        return quality * quality.dtype.type(k / total)
    return draw.capped_inclusion(quality, k).astype(quality.dtype)


def quality(wrong: Real, slope: Real, typical: Real, reliable: Real, strictness: float) -> Real:
    """Eq. 2 from p_i (already discounted), beta_i, m_i and the share of replies."""
    labels = np.exp(-strictness * np.maximum(wrong - MARGIN, 0.0))
    agreement = np.clip(0.5 + 2.0 * slope, 0.0, 1.0) * np.clip(2.0 * typical, 0.0, 1.0) ** 2
    found: Real = np.maximum(labels * agreement * reliable, FLOOR)
    return found


def usable(column: NDArray[Any]) -> NDArray[np.bool_]:
    """Rows that are finite, and short enough that their length is finite too."""
    found: NDArray[np.bool_] = np.isfinite(column if column.ndim == 1 else lengths(column))
    return found


def lengths(rows: NDArray[Any]) -> Double:
    """|row|, summed in double precision without a copy of the rows."""
    with np.errstate(over="ignore", invalid="ignore"):
        out: Double = np.sqrt(np.einsum("ij,ij->i", rows, rows, dtype=np.float64))
    return out


def excess_loss(before: Real, after: Real) -> Double:
    """Eq. 3: by how much the geometric mean of the two losses exceeds the median of the rows."""
    level = np.sqrt(np.maximum(before, 0.0).astype(np.float64)) * np.sqrt(np.maximum(after, 0.0))
    out: Double = level - np.median(level)
    return out


def agreement(delta: NDArray[Any]) -> tuple[Double, Double, float]:
    """Eq. 4 and 5: min(r, 1 / r) of the lengths, the cosine with the sum of the others, and the consensus w."""
    length = lengths(delta)
    median = float(np.median(length))
    if median <= 0:  # most of the updates are zero: nothing can be said
        return np.ones(length.size), np.zeros(length.size), 0.0
    ratio = np.clip(length / median, 1 / LARGEST, LARGEST)
    clip = np.minimum(1.0, 1.0 / ratio)  # nobody is longer than the median
    total = np.einsum("i,ij->j", clip, delta, dtype=np.float64)
    along = clip * np.einsum("ij,j->i", delta, total, dtype=np.float64)
    own = clip * length
    others = np.sqrt(np.maximum(total @ total - 2 * along + own**2, 0.0))
    cosine = (along - own**2) / np.maximum(own * others, 1e-12 * median**2)
    return np.minimum(ratio, 1 / ratio), cosine, max(float(np.median(cosine)), 0.0)
