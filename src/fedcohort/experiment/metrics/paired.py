"""Statistics of paired differences and of ranks, for few seeds: exact where it can be. The laws are SciPy's.

* interval: percentile bootstrap of the mean paired difference;
* sign test: under no difference, wins ~ Binomial(n, 1/2); ties are left out;
* Wilcoxon signed ranks (ties share ranks, zeros left out), and the interval that belongs to this test;
* Holm's correction for several comparisons;
* average ranks with Nemenyi's critical difference CD = q_{0.05,k} sqrt(k (k + 1) / (6 N)), q from the studentised
  range with infinitely many degrees of freedom, divided by sqrt(2).

SciPy is imported when the first of these is needed: most commands never do.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cache
from itertools import count

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcohort.core.rng import generator
from fedcohort.core.stats import rank

Double = NDArray[np.float64]
LEVEL = 0.95
ALPHA = 0.05
EXACT = 13  # pairs up to which every assignment of signs to tied differences is counted
VERDICT_SEEDS = 6  # pairs from which on an exact two-sided test can give less than 0.05 at all: 2 / 2^6
LEAST_SEEDS = 5  # with fewer, a bootstrap interval of the mean says less than it seems to: the range is told instead
SPREADS = ("range", "95 % interval")


def interval(values: ArrayLike, level: float = LEVEL, draws: int = 5000) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean; the same numbers give the same interval. One value: itself, twice."""
    x = np.asarray(values, np.float64)
    if x.size < 2:
        only = float(x[0]) if x.size else math.nan
        return only, only
    from scipy import stats

    found = stats.bootstrap(
        (x,), np.mean, confidence_level=level, n_resamples=draws, method="percentile", rng=generator(0, "paired")
    ).confidence_interval
    return float(found.low), float(found.high)


def spread(values: ArrayLike) -> tuple[float, float]:
    """What is told beside a mean over seeds: the range of fewer than LEAST_SEEDS values, else the interval of the mean.

    >>> spread([0.5, 0.2, 0.4])
    (0.2, 0.5)
    """
    x = np.asarray(values, np.float64)
    return interval(x) if x.size >= LEAST_SEEDS else (float(x.min()), float(x.max()))


def spread_name(count: int) -> str:
    """What :func:`spread` of so many values is called; nothing where there is only one.

    >>> spread_name(1), spread_name(3), spread_name(5)
    ('', 'range', '95 % interval')
    """
    return "" if count < 2 else SPREADS[count >= LEAST_SEEDS]


def spread_words(counts: Iterable[int]) -> str:
    """What stands in brackets behind means over so many seeds each, as part of a sentence.

    >>> spread_words([3, 3])
    'range over seeds (fewer than 5: no interval)'
    """
    found = {spread_name(n) for n in counts} - {""}
    if found == {SPREADS[0]}:
        return f"range over seeds (fewer than {LEAST_SEEDS}: no interval)"
    other = f", the range where there are fewer than {LEAST_SEEDS}" if len(found) > 1 else ""
    return f"95 % bootstrap interval over seeds{other}" if found else "one seed, no interval"


def sign_test(wins: int, losses: int) -> float:
    """Two-sided p-value of so many wins and losses."""
    from scipy import stats

    return float(stats.binomtest(wins, wins + losses).pvalue) if wins + losses else 1.0


def wilcoxon(difference: ArrayLike) -> float:
    """Two-sided p-value of the signed-rank test; 1 where nothing differs.

    Exact, except where differences are tied in size and there are more than EXACT of them.
    """
    d = np.asarray(difference, np.float64)
    d = np.round(d / max(float(np.abs(d).max(initial=0.0)), 1e-300), 12)  # the noise of subtraction would break ties
    d = d[np.flatnonzero(d)]
    if d.size < 2:
        return 1.0
    from scipy import stats

    tied = np.unique(np.abs(d)).size < d.size
    if not tied:
        return float(stats.wilcoxon(d, method="exact").pvalue)
    every_sign = stats.PermutationMethod(n_resamples=2**EXACT)
    return float(stats.wilcoxon(d, method=every_sign if d.size <= EXACT else "asymptotic").pvalue)


def signed_rank_interval(difference: ArrayLike) -> tuple[float, float]:
    """The interval that belongs to :func:`wilcoxon`: the shifts that the exact test does not refuse.

    It leaves zero out exactly where the test finds a difference at this level (ties aside), and holds its level however
    few pairs there are: a bootstrap of six pairs covers less than it says. Fewer than six pairs have no such interval.

    >>> signed_rank_interval([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    (1.0, 6.0)
    """
    x = np.sort(np.asarray(difference, np.float64))
    if x.size < VERDICT_SEEDS:
        return -np.inf, np.inf
    first, second = np.triu_indices(x.size)
    pairs = np.sort((x[first] + x[second]) / 2)
    ways = np.ones(1)
    for size in range(1, x.size + 1):  # how many sets of ranks have each sum
        ways = np.concatenate([ways, np.zeros(size)]) + np.concatenate([np.zeros(size), ways])
    below = np.cumsum(ways) / ways.sum()
    left_out = int(np.searchsorted(below, (1 - LEVEL) / 2, side="right"))
    return float(pairs[left_out - 1]), float(pairs[-left_out])


def least_p(n: int) -> float:
    """The smallest p-value that n pairs can give at all."""
    return min(2.0 ** (1 - n), 1.0)


def seeds_for(comparisons: int) -> int:
    """The fewest pairs with which one of so many comparisons can be decided after Holm's correction.

    >>> [seeds_for(k) for k in (1, 2, 3, 4, 6, 7)]
    [6, 7, 7, 8, 8, 9]
    """
    return next(n for n in count(VERDICT_SEEDS) if least_p(n) * comparisons < ALPHA)


def holm(p: ArrayLike) -> Double:
    """Adjusted p-values: as many comparisons as there are entries."""
    x = np.asarray(p, np.float64)
    order = np.argsort(x, kind="stable")
    stepped = np.maximum.accumulate(x[order] * (x.size - np.arange(x.size)))
    out = np.empty_like(x)
    out[order] = np.minimum(stepped, 1.0)
    return out


def average_ranks(values: ArrayLike) -> Double:
    """Mean rank over rows (worlds) of each column; rank 1 is the highest, ties share, +-inf is allowed."""
    x = -np.asarray(values, np.float64)
    return np.asarray(np.mean([rank(row) + 1.0 for row in x], axis=0), np.float64)


def critical_difference(k: int, n: int) -> float:
    """Nemenyi: average ranks of k over n worlds that differ by less cannot be told apart."""
    return studentised_range(k) / math.sqrt(2.0) * math.sqrt(k * (k + 1) / (6.0 * n))


@cache
def studentised_range(k: int) -> float:
    """Quantile of the range of k standard normals."""
    from scipy import stats

    return float(stats.studentized_range.ppf(LEVEL, k, math.inf))
