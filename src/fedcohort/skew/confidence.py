"""Hoeffding's inequality for shares of duels won.

One comparison of a client is one round: the share of that round's other clients that it beats, a number in [0, 1].
Rounds draw their cohort and their model afresh, so the n comparisons of a client are independent and their mean w
stays close to its expectation p (the probability of beating a client drawn uniformly at random):

    P( |w - p| >= eps ) <= 2 exp(-2 n eps^2)          eps = sqrt( ln(2 / delta) / (2 n) )                           (1)
    P( w - p >= gap )   <=   exp(-2 n gap^2)          for one side only                                             (2)

For statements about all of k clients at once delta is divided by k (union bound). The single duels of a round share a
model and a mean; they are not independent and do not count as so many comparisons.
"""

from __future__ import annotations

import math
from typing import Annotated, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcohort.core.constraints import Count, Factor, Interval
from fedcohort.errors import check, checked

Double = NDArray[np.float64]
Probability = Annotated[float, Interval(0, 1, ends="()")]


@checked
def radius(comparisons: ArrayLike, delta: Probability = 0.05, clients: Count = 1) -> Double:
    """eps of eq. 1: how far shares of duels won after n comparisons may be off, with probability 1 - delta for all.

    Without a comparison nothing is known: 1.

    >>> radius([0, 185, 1000]).round(3)
    array([1.   , 0.1  , 0.043])
    """
    n = np.asarray(comparisons, np.float64)
    check(bool((n >= 0).all()), f"comparisons = {n.min(initial=0):g}", "a count is not negative", "use 0 or more")
    eps = np.sqrt(math.log(2 * clients / delta) / (2 * np.maximum(n, 1e-300)))
    return np.minimum(eps, 1.0)


@checked
def comparisons_needed(eps: Factor, delta: Probability = 0.05, clients: Count = 1) -> int:
    """The smallest n for which :func:`radius` is at most eps: how often each client must be compared.

    >>> comparisons_needed(0.1), comparisons_needed(0.1, clients=50)
    (185, 381)
    """
    return math.ceil(math.log(2 * clients / delta) / (2 * eps * eps) * (1 - 1e-12))


def confidence_of(gap: ArrayLike, comparisons: ArrayLike) -> Double:
    """1 - eq. 2: the confidence that a share which is `gap` beyond a border belongs on that side.

    >>> confidence_of(0.1, [10, 100, 1000]).round(2)
    array([0.18, 0.86, 1.  ])
    """
    g, n = np.asarray(gap, np.float64), np.asarray(comparisons, np.float64)
    sure: Double = -np.expm1(-2.0 * n * np.square(np.maximum(g, 0.0)))
    return sure


@checked
def settled_after(gap: ArrayLike, delta: Probability = 0.05) -> NDArray[Any]:
    """Comparisons after which :func:`confidence_of` this gap reaches 1 - delta; infinite where there is no gap."""
    g = np.maximum(np.asarray(gap, np.float64), 0.0)
    need = np.full(g.shape, np.inf)
    np.divide(math.log(1 / delta), 2 * g * g, out=need, where=g > 0)
    return np.ceil(need * (1 - 1e-12))
