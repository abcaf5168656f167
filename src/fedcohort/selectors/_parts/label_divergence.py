"""How far the label shares of each client are from the mean of all: the Jensen-Shannon divergence, in bits."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedcohort.selectors._parts.scoring import CHUNK
from fedcohort.types import Array, Mask, Real

Double = NDArray[np.float64]
SMOOTHING = 1e-6  # added to label shares


def _sound(shares: Array) -> Mask:
    """Rows that are usable shares."""
    total = shares.sum(axis=1)
    ok: Mask = np.isfinite(total) & (total > 0) & (shares >= 0).all(axis=1)
    return ok


def _smooth(shares: Array) -> Double:
    """Laplace-smoothed rows that sum to one."""
    p = shares / shares.sum(axis=1, keepdims=True, dtype=np.float64) + SMOOTHING
    out: Double = p / (1 + SMOOTHING * shares.shape[1])
    return out


def mean_shares(shares: Array) -> Double:
    """mean P over all registered clients."""
    total, count = np.zeros(shares.shape[1]), 0
    for lo in range(0, shares.shape[0], CHUNK):
        part = shares[lo : lo + CHUNK]
        part = part[_sound(part)]
        total, count = total + _smooth(part).sum(axis=0), count + part.shape[0]
    return total / max(count, 1)


def divergence(shares: Array, mean: Double) -> Real:
    """JS(P, mean) of every row: H((P + mean) / 2) - H(P) / 2 - H(mean) / 2; -1 where no shares are known."""
    out, common = np.full(shares.shape[0], -1.0, np.float32), 0.5 * _entropy(mean)
    for lo in range(0, shares.shape[0], CHUNK):
        part = shares[lo : lo + CHUNK]
        at = np.flatnonzero(_sound(part))
        p = _smooth(part[at])
        out[lo + at] = np.clip(_entropy(0.5 * (p + mean)) - 0.5 * _entropy(p) - common, 0, 1)
    return out


def _entropy(p: Double) -> Double:
    """In bits, along the last axis."""
    out: Double = -(p * np.log2(p)).sum(axis=-1)
    return out
