"""Small dense linear algebra for linear models of a few features: ridge sums, sampling, confidence widths."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Real = NDArray[np.floating[Any]]
Double = NDArray[np.float64]


def accumulate(
    gram: Double, moment: Double, x: Real, y: Real, *, ridge: float, keep: float = 1.0, weight: float = 1.0
) -> tuple[Double, Double]:
    """Ridge sums after these rows: (keep V + (1 - keep) ridge I + w X'X, keep b + w X'y). Returns new arrays.

    The middle term keeps the prior at full strength while the past is forgotten.
    """
    x64, y64 = np.asarray(x, np.float64), np.asarray(y, np.float64)
    prior = (1.0 - keep) * ridge * np.eye(gram.shape[0])
    if x64.shape[0] == 0:
        return keep * gram + prior, keep * moment
    return keep * gram + prior + weight * (x64.T @ x64), keep * moment + weight * (x64.T @ y64)


def root(gram: Double) -> Double:
    """Lower Cholesky factor of a symmetric positive matrix; the smallest jitter that works is added if needed."""
    sym = 0.5 * (gram + gram.T)
    scale = max(float(np.trace(sym)) / max(sym.shape[0], 1), 1e-300)
    for jitter in (0.0, 1e-12, 1e-9, 1e-6):
        try:
            return np.linalg.cholesky(sym + jitter * scale * np.eye(sym.shape[0]))
        except np.linalg.LinAlgError:
            continue
    return np.linalg.cholesky(np.diag(np.maximum(np.diag(sym), 1e-6 * scale)))


def solve(gram: Double, moment: Double) -> Double:
    """The ridge estimate V^-1 b."""
    low = root(gram)
    out: Double = np.linalg.solve(low.T, np.linalg.solve(low, moment))
    return out


def sample(mean: Double, gram: Double, scale: float, rng: np.random.Generator) -> Double:
    """One draw of N(mean, scale^2 V^-1): mean + scale L^-T xi, where V = L L'."""
    xi = rng.standard_normal(mean.size)
    out: Double = mean + scale * np.linalg.solve(root(gram).T, xi)
    return out


def whitener(gram: Double) -> Double:
    """F = L^-T, where V = L L': then |x F| = sqrt(x' V^-1 x)."""
    return np.asarray(np.linalg.inv(root(gram)).T, np.float64)


def norms(x: Real, factor: Double) -> Real:
    """|x F| for every row x; with a :func:`whitener`, the width of the confidence interval at x."""
    z = factor.T.astype(x.dtype) @ x.T
    np.square(z, out=z)
    out: Real = np.sqrt(z.sum(axis=0))
    return out
