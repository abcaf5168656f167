"""Drawing without replacement, with ties broken by the generator. Fast at a million rows.

Functions that take `clients` return clients; functions that take weights or scores return *positions*.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Index = NDArray[np.int64]
Real = NDArray[np.floating[Any]]
_CERTAIN = 1e-12  # probabilities this close to 1 are 1


def uniform(clients: Index, k: int, rng: np.random.Generator) -> Index:
    """k of these clients, each set equally likely.

    >>> rng = np.random.default_rng(0)
    >>> uniform(np.array([2, 5, 9]), 3, rng).tolist()
    [2, 5, 9]
    """
    k = min(k, clients.size)
    if k <= 0:
        return np.empty(0, np.int64)
    return clients[rng.choice(clients.size, k, replace=False, shuffle=False)]


def split(clients: Index, flag: NDArray[np.bool_]) -> tuple[Index, Index]:
    """(those whose flag is set, those whose flag is not).

    >>> seen, unseen = split(np.array([0, 2, 3]), flag=np.array([True, True, False, True]))
    >>> seen.tolist(), unseen.tolist()
    ([0, 3], [2])
    """
    on = flag[clients]
    return clients[np.flatnonzero(on)], clients[np.flatnonzero(~on)]


def top(score: Real, k: int, rng: np.random.Generator) -> Index:
    """Positions of the k largest scores, in no particular order; ties at the border are drawn by the generator.

    NaN ranks below everything else.

    >>> sorted(top(np.array([0.1, 0.9, np.nan, 0.5]), 2, np.random.default_rng(0)).tolist())
    [1, 3]
    """
    n = score.size
    k = min(k, n)
    if k <= 0:
        return np.empty(0, np.int64)
    if k == n:
        return np.arange(n)
    unknown = np.isnan(score)
    if unknown.any():
        score = np.where(unknown, -np.inf, score)
    border = np.partition(score, n - k)[n - k]
    above = np.flatnonzero(score > border)
    return np.concatenate([above, uniform(np.flatnonzero(score == border), k - above.size, rng)])


def bottom(score: Real, k: int, rng: np.random.Generator) -> Index:
    """Positions of the k smallest scores; otherwise as :func:`top`.

    >>> bottom(np.array([0.1, 0.9, 0.5]), 1, np.random.default_rng(0)).tolist()
    [0]
    """
    return top(-score, k, rng)


def weighted(weight: Real, k: int, rng: np.random.Generator) -> Index:
    """k positions without replacement, as if drawn one after the other with odds proportional to weight.

    Exponential races (Efraimidis and Spirakis): the k smallest of Exp(1) / weight. Rows of weight zero are drawn
    only when nothing else is left, uniformly. Negative or non-finite weights are a mistake of the caller.

    >>> sorted(weighted(np.array([0.0, 3.0, 1.0]), 2, np.random.default_rng(0)).tolist())
    [1, 2]
    """
    n = weight.size
    k = min(k, n)
    if k <= 0:
        return np.empty(0, np.int64)
    live = np.flatnonzero(weight > 0)
    if live.size <= k:
        dead = np.flatnonzero(weight <= 0)
        return np.concatenate([live, uniform(dead, k - live.size, rng)])
    with np.errstate(over="ignore"):  # a denormal weight loses the race at infinity, as it should
        race = rng.standard_exponential(live.size) / weight[live]
    return live[top(-race, k, rng)]


def softmax(score: Real, k: int, temperature: float, rng: np.random.Generator) -> Index:
    """k positions without replacement with odds exp(score / temperature) (Gumbel top-k).

    >>> softmax(np.array([0.0, 100.0]), 1, temperature=0.1, rng=np.random.default_rng(0)).tolist()
    [1]
    """
    return top(score / temperature + rng.gumbel(size=score.size), k, rng)


def capped_inclusion(weight: Real, k: int) -> NDArray[np.float64]:
    """Inclusion probabilities proportional to weight, capped at 1, that sum to min(k, number of rows).

    Rows of weight zero have probability zero, unless fewer than k rows have any weight: then they share the rest.

    >>> capped_inclusion(np.array([8.0, 1.0, 1.0]), 2).tolist()
    [1.0, 0.5, 0.5]
    """
    n = weight.size
    if k >= n:
        return np.ones(n)
    w = np.asarray(weight, np.float64)
    live = w > 0
    spare = k - int(live.sum())
    if spare >= 0:
        return np.where(live, 1.0, spare / max(n - (k - spare), 1))
    order = np.sort(w)[::-1]
    tail = np.cumsum(order[::-1])[::-1]  # tail[j] = sum of order[j:]
    j = np.arange(max(k, 0))
    fits = order[j] * (k - j) <= tail[j]  # with the j largest capped, the next one fits below 1
    capped = int(np.argmax(fits)) if fits.any() else max(k, 0)
    scale = (k - capped) / float(tail[capped])
    return np.minimum(w * scale, 1.0)


def depround(inclusion: Real, rng: np.random.Generator) -> Index:
    """A random set whose size is the (integer) sum of `inclusion` and whose marginals are `inclusion`.

    Systematic sampling over a random order: those of probability 1 are in, and a comb of unit spacing and random
    offset is laid over the others. Exact marginals, one pass. Sorted positions.

    >>> chosen = depround(np.array([1.0, 0.5, 0.5]), np.random.default_rng(0))
    >>> int(chosen[0]), chosen.size
    (0, 2)
    """
    p = np.asarray(inclusion, np.float64)
    certain = np.flatnonzero(p >= 1.0 - _CERTAIN)
    open_ = np.flatnonzero((p > 0) & (p < 1.0 - _CERTAIN))
    order = open_[rng.permutation(open_.size)]
    edge = np.concatenate([[0.0], np.cumsum(p[order])])
    total = round(float(edge[-1]))
    if total == 0:
        return certain
    edge *= total / edge[-1]
    edge[-1] = total
    hit = np.searchsorted(edge, np.arange(total) + rng.random(), side="right") - 1
    return np.sort(np.concatenate([certain, order[hit]]))
