"""Gaussians whose covariance is low-rank plus noise, S = X'X + s^2 I with X of shape (D, N): never an N x N matrix.

By Woodbury, with A = s^2 I + X X' of shape (D, D):

    S^-1 y = (y - X' A^-1 X y) / s^2          log det S = log det A + (N - D) log s^2          X S^-1 = A^-1 X
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Real = NDArray[np.floating[Any]]
Double = NDArray[np.float64]


def solve(x: Double, noise: float, y: Double) -> Double:
    """S^-1 y, for y of shape (N,) or (N, k)."""
    inner = noise**2 * np.eye(x.shape[0]) + x @ x.T
    out: Double = (y - x.T @ np.linalg.solve(inner, x @ y)) / noise**2
    return out


def logdet(x: Double, noise: float) -> float:
    """log det S."""
    d, n = x.shape
    inner = noise**2 * np.eye(d) + x @ x.T
    return float(np.linalg.slogdet(inner)[1] + (n - d) * np.log(noise**2))


def log_likelihood(x: Double, noise: float, y: Double, mask: NDArray[np.bool_], weight: Double) -> tuple[float, Double]:
    """sum_e weight_e log N(y_e; 0, S) over the observed entries of each row of y (E, N), and its gradient in X (D, N).

    With a_e = S^-1 y_e the gradient of one term is (X a_e) a_e' - X S^-1. Rows with the same entries observed share a
    factorisation.
    """
    d = x.shape[0]
    patterns, which = np.unique(mask, axis=0, return_inverse=True)
    which = which.reshape(-1)
    part = x[None] * patterns[:, None, :]  # (G, D, N): X with the columns that were not observed at zero
    inner = part @ x.T + noise**2 * np.eye(d)
    inverse = np.linalg.inv(inner)
    count = patterns.sum(axis=1)
    constant = np.linalg.slogdet(inner)[1] + (count - d) * np.log(noise**2) + count * np.log(2 * np.pi)
    z = y * mask
    back = np.einsum("ed,edf->ef", z @ x.T, inverse[which]) @ x
    a = (z - back * mask) / noise**2
    value = -0.5 * float(weight @ ((z * a).sum(axis=1) + constant[which]))
    total = np.bincount(which, weight, minlength=patterns.shape[0])
    gradient: Double = (x @ a.T * weight) @ a - (total[:, None, None] * (inverse @ part)).sum(axis=0)
    return value, gradient
