"""Statistics of paired differences and of ranks, for few seeds: exact where it can be.

* interval: percentile bootstrap of the mean paired difference;
* sign test: under no difference, wins ~ Binomial(n, 1/2); ties are left out;
* Wilcoxon signed ranks: the exact law of the smaller rank sum, by counting subsets (ties share ranks, zeros left out);
* Holm's correction for several comparisons;
* average ranks with Nemenyi's critical difference CD = q_{0.05,k} sqrt(k (k + 1) / (6 N)), q from the studentised
  range with infinitely many degrees of freedom, divided by sqrt(2).
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcohort.core.rng import generator
from fedcohort.core.stats import bootstrap, rank

Double = NDArray[np.float64]
LEVEL = 0.95


def interval(difference: ArrayLike, level: float = LEVEL, draws: int = 5000) -> tuple[float, float]:
    """Bootstrap interval of the mean; the same numbers give the same interval."""
    return bootstrap(np.asarray(difference, np.float64), generator(0, "paired"), level=level, draws=draws)


def sign_test(wins: int, losses: int) -> float:
    """Two-sided p-value of so many wins and losses."""
    n, k = wins + losses, min(wins, losses)
    return min(2.0 * sum(math.comb(n, i) for i in range(k + 1)) / 2.0**n, 1.0) if n else 1.0


def wilcoxon(difference: ArrayLike) -> float:
    """Two-sided exact p-value of the signed-rank test; 1 where nothing differs."""
    d = np.asarray(difference, np.float64)
    d = d[np.flatnonzero(d)]
    if not d.size:
        return 1.0
    doubled = np.rint(2 * (rank(np.abs(d)) + 1)).astype(np.int64)  # ranks shared by ties are halves
    ways = np.zeros(int(doubled.sum()) + 1)
    ways[0] = 1.0
    for r in doubled:
        ways[r:] = ways[r:] + ways[:-r]
    plus = int(doubled[d > 0].sum())
    low = min(plus, int(doubled.sum()) - plus)
    return float(min(2.0 * ways[: low + 1].sum() / 2.0**d.size, 1.0))


def least_p(n: int) -> float:
    """The smallest p-value that n pairs can give at all."""
    return min(2.0 ** (1 - n), 1.0)


def holm(p: ArrayLike) -> Double:
    """Adjusted p-values: as many comparisons as there are entries."""
    x = np.asarray(p, np.float64)
    order = np.argsort(x, kind="stable")
    stepped = np.maximum.accumulate(x[order] * (x.size - np.arange(x.size)))
    out = np.empty_like(x)
    out[order] = np.minimum(stepped, 1.0)
    return out


def average_ranks(values: ArrayLike, better: int = 1) -> Double:
    """Mean rank over rows (worlds) of each column; rank 1 is the best, ties share, +-inf is allowed."""
    x = -better * np.asarray(values, np.float64)
    return np.asarray(np.mean([rank(row) + 1.0 for row in x], axis=0), np.float64)


def critical_difference(k: int, n: int, level: float = LEVEL) -> float:
    """Nemenyi: average ranks of k over n worlds that differ by less cannot be told apart."""
    return studentised_range(k, level) / math.sqrt(2.0) * math.sqrt(k * (k + 1) / (6.0 * n))


@cache
def studentised_range(k: int, level: float = LEVEL) -> float:
    """Quantile of the range of k standard normals: P = k int phi(z) (Phi(z) - Phi(z - q))^(k-1) dz, by bisection."""
    z = np.linspace(-8.0, 8.0, 4001)
    density = np.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
    below = _normal(z)
    low, high = 0.0, 20.0
    for _ in range(60):
        q = 0.5 * (low + high)
        mass = k * float(np.sum(density * (below - _normal(z - q)) ** (k - 1)) * (z[1] - z[0]))
        low, high = (q, high) if mass < level else (low, q)
    return 0.5 * (low + high)


def friedman(values: ArrayLike) -> float:
    """Friedman's statistic of rows (worlds) x columns, without tie correction: 0 where all average ranks are equal."""
    x = np.asarray(values, np.float64)
    n, k = x.shape
    mean = average_ranks(x)
    return float(12.0 * n / (k * (k + 1)) * ((mean - (k + 1) / 2.0) ** 2).sum())


def _normal(z: Double) -> Double:
    return np.array([0.5 * math.erfc(-v / math.sqrt(2.0)) for v in z])
