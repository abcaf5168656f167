"""Small statistics over clients. All accept empty input and never produce NaN from finite input."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Real = NDArray[np.floating[Any]]
Double = NDArray[np.float64]


def winsorise(x: Real, upper: float = 1.0, lower: float = 0.0) -> Real:
    """Clip to these quantiles of x itself (order statistics, no interpolation, both rounded down).

    So an `upper` below 1 always clips the largest of several, a small `lower` the smallest only where there are enough.

    >>> winsorise(np.array([1.0, 2.0, 3.0, 9.0]), 0.95, 0.05).tolist()
    [1.0, 2.0, 3.0, 3.0]
    """
    if x.size == 0:
        return x
    lo, hi = int(lower * (x.size - 1)), int(upper * (x.size - 1))
    part = np.partition(x, (lo, hi))
    out: Real = np.clip(x, part[lo], part[hi])
    return out


def minmax(x: Real, constant: float = 0.5, floor: float = 1e-8) -> Real:
    """Scale to [0, 1]; a constant column becomes `constant`."""
    if x.size == 0:
        return x
    low, span = x.min(), float(np.ptp(x))
    if span <= floor:
        return np.full_like(x, constant)
    out: Real = (x - low) / span
    return out


def zscore(x: Real, clip: float = np.inf) -> Real:
    """Centre and scale to unit standard deviation; a constant column becomes 0."""
    if x.size == 0:
        return x
    sd = float(x.std()) if np.ptp(x) > 0 else 0.0  # the mean of a constant column may be off by rounding
    z = np.zeros_like(x) if sd <= 1e-12 else (x - x.mean()) / sd
    return np.clip(z, -clip, clip)


def softmax(x: Real, axis: int = -1) -> Real:
    """Stable softmax along an axis."""
    if x.size == 0:
        return x
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    out: Real = e / e.sum(axis=axis, keepdims=True)
    return out


def log_softmax(x: Real) -> Real:
    """Logarithm of the softmax along the last axis, stable."""
    if x.size == 0:
        return x
    shifted: Real = x - x.max(axis=-1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return shifted


def cross_entropy(log_p: Real, labels: NDArray[np.int64]) -> Real:
    """-log p of the label of every sample."""
    picked: Real = np.take_along_axis(log_p, labels[..., None], axis=-1)[..., 0]
    return np.negative(picked)


def rank(x: Real) -> Double:
    """Average ranks, 0-based; ties share their mean rank."""
    _, inverse, counts = np.unique(x, return_inverse=True, return_counts=True)
    upto = np.cumsum(counts)
    return ((upto - counts) + (counts - 1) / 2.0)[inverse.reshape(-1)]


def spearman(x: Real, y: Real) -> float:
    """Rank correlation; 0 where one side is constant or empty."""
    if x.size == 0:
        return 0.0
    a, b = rank(x), rank(y)
    a, b = a - a.mean(), b - b.mean()
    scale = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / scale if scale > 0 else 0.0


def jain(x: Real) -> float:
    """Jain's fairness index: 1 when all are equal, 1/n when one has everything."""
    x = np.asarray(x, np.float64)
    square = float((x * x).sum())
    return float(x.sum()) ** 2 / (x.size * square) if square > 0 else 1.0


def js_divergence(p: Real, q: Real) -> Double:
    """Jensen-Shannon divergence in bits, along the last axis: 0 for equal, 1 for disjoint distributions."""
    a, b = np.broadcast_arrays(np.asarray(p, np.float64), np.asarray(q, np.float64))
    m = 0.5 * (a + b)

    def kl(a: Double, b: Double) -> Double:
        ratio = np.divide(a, b, out=np.ones(a.shape), where=(a > 0) & (b > 0))
        out: Double = (a * np.log2(ratio)).sum(axis=-1)
        return out

    return np.clip(0.5 * kl(a, m) + 0.5 * kl(b, m), 0.0, 1.0)


def effective_classes(histogram: Real) -> Double:
    """exp(entropy) of each row: how many equally frequent classes would be as mixed."""
    h = np.asarray(histogram, np.float64)
    total = h.sum(axis=-1, keepdims=True)
    p = np.divide(h, total, out=np.zeros_like(h), where=total > 0)
    logs = np.log(p, out=np.zeros_like(p), where=p > 0)
    out: Double = np.exp(-(p * logs).sum(axis=-1))
    return out
