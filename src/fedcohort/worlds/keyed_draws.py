"""Keyed draws beyond `core.rng`: permutations, gamma, beta and Dirichlet, each a function of (seed, stream, key, id).

Worlds do not use the distributions of `numpy.random.Generator`, whose streams NumPy may change between releases.
Everything here is built on `core.rng.bits_at`, so the same seed gives the same bytes with every supported NumPy.
Gamma draws are made in log space: with alpha as small as 1e-100 a Dirichlet row is still a distribution, never NaN.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcohort.core.rng import bits_at, uniform_at
from fedcohort.types import Index, Mask

Double = NDArray[np.float64]
CHUNK = 1 << 14  # rows handled at a time, so that temporaries stay in cache. Part of what defines a world
_ATTEMPTS = 32  # Marsaglia-Tsang refuses about one draw in twenty


def order(seed: int, stream: str, n: int, key: int = 0) -> Index:
    """A permutation of 0 .. n - 1."""
    return np.argsort(bits_at(seed, stream, key, np.arange(n)))


def order_within(seed: int, stream: str, owner: Index, ids: Index) -> Index:
    """Positions sorted by owner and, within an owner, in random order; equal ids stay neighbours."""
    if owner.size == 0:
        return np.empty(0, np.int64)
    width = max(int(owner.max()).bit_length(), 1)
    bits = bits_at(seed, stream, 0, ids) >> np.uint64(width)
    return np.argsort((owner.astype(np.uint64) << np.uint64(64 - width)) | bits)


def blocks(start: Index, samples: int = 1 << 19) -> Iterator[tuple[int, int, NDArray[np.int64]]]:
    """Runs of clients with about this many samples: (first client, one past the last, owner of each sample)."""
    first, clients = 0, start.size - 1
    while first < clients:
        past = int(np.searchsorted(start, start[first] + samples, side="right")) - 1
        past = min(max(past, first + 1), clients)
        yield first, past, np.repeat(np.arange(past - first), np.diff(start[first : past + 1]))
        first = past


def log_gamma(seed: int, stream: str, key: int, ids: Index, shape: float | Double) -> Double:
    """Logarithm of Gamma(shape, 1) for each id (Marsaglia and Tsang; shapes below 1 by the power of a uniform)."""
    a = np.maximum(np.asarray(shape, np.float64), 1e-100)
    d = np.where(a < 1.0, a + 1.0, a) - 1.0 / 3.0
    log_v, taken = _attempt(seed, stream, key, ids, d, 0)
    out: Double = np.where(taken, log_v, 0.0)  # where every attempt is refused the mode is left
    todo = np.flatnonzero(~taken)
    for attempt in range(1, _ATTEMPTS):
        if todo.size == 0:
            break
        log_v, taken = _attempt(seed, stream, key, ids[todo], d if d.ndim == 0 else d[todo], attempt)
        out[todo[taken]] = log_v[taken]
        todo = todo[~taken]
    out += np.log(d)
    if np.any(a < 1.0):
        power = np.log(uniform_at(seed, stream, key, ids, 3 * _ATTEMPTS)) / a
        out += np.where(a < 1.0, power, 0.0)
    return out


def _attempt(seed: int, stream: str, key: int, ids: Index, d: Double, attempt: int) -> tuple[Double, Mask]:
    """log v = 3 log(1 + x / sqrt(9 d)) of a normal x, and whether it may be used."""
    x = _normal(seed, stream, key, ids, 3 * attempt)
    u = uniform_at(seed, stream, key, ids, 3 * attempt + 2)
    t = np.maximum(1.0 + x / np.sqrt(9.0 * d), 1e-100)
    log_v = 3.0 * np.log(t)
    return log_v, (t > 1e-100) & (np.log(u) < 0.5 * x * x + d * (1.0 - t * t * t + log_v))


def beta(seed: int, stream: str, ids: Index, a: float, b: float) -> Double:
    """Beta(a, b) for each id, rounded to 1e-6 so that the last bits of the maths library cannot matter."""
    difference = log_gamma(seed, stream, 1, ids, b) - log_gamma(seed, stream, 0, ids, a)
    return np.round(1.0 / (1.0 + np.exp(np.minimum(difference, 700.0))), 6)


def dirichlet_rows(seed: int, stream: str, ids: Index, alpha: Double) -> Double:
    """One Dirichlet distribution over classes per id. `alpha` is (classes,) or (ids, classes)."""
    z = np.stack([log_gamma(seed, stream, c, ids, alpha[..., c]) for c in range(alpha.shape[-1])], axis=1)
    return _normalised(z)


def dirichlet_over(seed: int, stream: str, key: int, n: int, alpha: float) -> Double:
    """One symmetric Dirichlet distribution over n clients."""
    z = np.concatenate(
        [log_gamma(seed, stream, key, np.arange(at, min(at + CHUNK, n)), alpha) for at in range(0, n, CHUNK)]
    )
    return _normalised(z)


def normal(seed: int, stream: str, key: int, ids: Index) -> Double:
    """Standard normal for each id."""
    return _normal(seed, stream, key, ids, 0)


def _normal(seed: int, stream: str, key: int, ids: Index, draw: int) -> Double:
    u = uniform_at(seed, stream, key, ids, draw)
    v = uniform_at(seed, stream, key, ids, draw + 1)
    out: Double = np.sqrt(-2.0 * np.log(u)) * np.cos(2.0 * np.pi * v)
    return out


def _normalised(z: Double) -> Double:
    p = np.exp(np.maximum(z - z.max(axis=-1, keepdims=True), -745.0))
    out: Double = p / p.sum(axis=-1, keepdims=True)
    return out


def rounded(x: NDArray[Any]) -> Double:
    """To nine decimals: equal numbers stay equal whatever the maths library."""
    return np.asarray(x, np.float64).round(9)
