"""Drawing without replacement, with ties broken by the generator. Fast at a million rows.

Functions that take `clients` return clients; functions that take weights or scores return *positions*.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Index = NDArray[np.int64]
Real = NDArray[np.floating[Any]]


def uniform(clients: Index, k: int, rng: np.random.Generator) -> Index:
    """k of these clients, each set equally likely."""
    k = min(k, clients.size)
    if k <= 0:
        return np.empty(0, np.int64)
    return clients[rng.choice(clients.size, k, replace=False, shuffle=False)]


def split(clients: Index, flag: NDArray[np.bool_]) -> tuple[Index, Index]:
    """(those whose flag is set, those whose flag is not)."""
    on = flag[clients]
    return clients[np.flatnonzero(on)], clients[np.flatnonzero(~on)]


def top(score: Real, k: int, rng: np.random.Generator) -> Index:
    """Positions of the k largest scores, in no particular order; ties at the border are drawn by the generator."""
    n = score.size
    k = min(k, n)
    if k <= 0:
        return np.empty(0, np.int64)
    if k == n:
        return np.arange(n)
    border = np.partition(score, n - k)[n - k]
    above = np.flatnonzero(score > border)
    return np.concatenate([above, uniform(np.flatnonzero(score == border), k - above.size, rng)])


def bottom(score: Real, k: int, rng: np.random.Generator) -> Index:
    """Positions of the k smallest scores."""
    return top(-score, k, rng)


def weighted(weight: Real, k: int, rng: np.random.Generator) -> Index:
    """k positions without replacement, as if drawn one after the other with odds proportional to weight.

    Exponential races (Efraimidis and Spirakis): the k smallest of Exp(1) / weight. Rows of weight zero are drawn
    only when nothing else is left, uniformly. Negative or non-finite weights are a mistake of the caller.
    """
    n = weight.size
    k = min(k, n)
    if k <= 0:
        return np.empty(0, np.int64)
    live = np.flatnonzero(weight > 0)
    if live.size <= k:
        dead = np.flatnonzero(weight <= 0)
        return np.concatenate([live, uniform(dead, k - live.size, rng)])
    race = rng.standard_exponential(live.size) / weight[live]
    return live[top(-race, k, rng)]


def softmax(score: Real, k: int, temperature: float, rng: np.random.Generator) -> Index:
    """k positions without replacement with odds exp(score / temperature) (Gumbel top-k)."""
    return top(score / temperature + rng.gumbel(size=score.size), k, rng)


def capped_inclusion(weight: Real, k: int) -> NDArray[np.float64]:
    """Inclusion probabilities proportional to weight, capped at 1, that sum to min(k, number of rows)."""
    n = weight.size
    if k >= n:
        return np.ones(n)
    w = np.asarray(weight, np.float64)
    if w.sum() <= 0:
        w = np.ones(n)
    order = np.sort(w)[::-1]
    tail = np.cumsum(order[::-1])[::-1]  # tail[j] = sum of order[j:]
    j = np.arange(min(k, n))
    fits = order[j] * (k - j) <= tail[j]  # with the j largest capped, the next one fits below 1
    capped = int(np.argmax(fits)) if fits.any() else k
    rest = tail[capped] if capped < n else 0.0
    scale = (k - capped) / rest if rest > 0 else 0.0
    return np.minimum(w * scale, 1.0)


def depround(inclusion: Real, rng: np.random.Generator) -> Index:
    """A random set whose size is the (integer) sum of `inclusion` and whose marginals are `inclusion`.

    Systematic sampling over a random order: exact marginals, one pass, O(n log n) or better.
    """
    n = inclusion.size
    order = rng.permutation(n)
    edge = np.concatenate([[0.0], np.cumsum(np.asarray(inclusion, np.float64)[order])])
    total = round(float(edge[-1]))
    edge *= total / edge[-1] if edge[-1] > 0 else 1.0
    ticks = np.floor(edge + rng.random()).astype(np.int64)
    ticks[0], ticks[-1] = min(ticks[0], ticks[1]) if n else 0, max(ticks[-1], total)
    return np.sort(order[np.flatnonzero(np.diff(ticks) > 0)])
