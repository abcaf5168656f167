"""The network of the neural bandit: two hidden layers in NumPy, with the squared gradients that its bonus needs."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcohort.types import Real

Single = NDArray[np.float32]


class RewardNetwork:
    """f(x; w): d - q - q - 1 with ReLU, parameters in one flat vector, gradients by hand."""

    def __init__(self, d: int, q: int) -> None:
        self.q = q
        self.shapes = ((d, q), (q,), (q, q), (q,), (q,), (1,))
        self.ends = np.cumsum([int(np.prod(shape)) for shape in self.shapes])

    def initial(self, rng: np.random.Generator) -> Single:
        """He's initialisation, biases zero."""
        parts = [
            np.zeros(shape) if j in (1, 3, 5) else rng.standard_normal(shape) * np.sqrt((1 + (j < 4)) / shape[0])
            for j, shape in enumerate(self.shapes)
        ]
        return self.join(parts)

    def split(self, flat: Real) -> list[Real]:
        """Views of the flat vector: W1, b1, W2, b2, w3, b3."""
        pieces = np.split(flat, self.ends[:-1])
        return [piece.reshape(shape) for piece, shape in zip(pieces, self.shapes, strict=True)]

    def join(self, parts: list[Any]) -> Single:
        """Inverse of :meth:`split`."""
        return np.concatenate([np.ravel(part) for part in parts]).astype(np.float32)

    def passes(self, w: Real, x: Real) -> tuple[Real, Real, Real, Real, Real]:
        """(f, h1, h2, df/da1, df/da2) for every row, where a1 and a2 are what goes into the ReLUs."""
        w1, b1, w2, b2, w3, b3 = self.split(w)
        h1 = np.maximum(x @ w1 + b1, 0)
        h2 = np.maximum(h1 @ w2 + b2, 0)
        d2 = (h2 > 0) * w3
        d1 = (h1 > 0) * (d2 @ w2.T)
        return h2 @ w3 + b3, h1, h2, d1, d2

    def gradient(self, w: Real, x: Real, y: Real) -> Single:
        """Gradient of mean (f - y)^2 / 2."""
        f, h1, h2, d1, d2 = self.passes(w, x)
        e = ((f - y) / np.float32(y.size))[:, None]
        d1, d2 = d1 * e, d2 * e
        return self.join([x.T @ d1, d1.sum(0), h1.T @ d2, d2.sum(0), (h2 * e).sum(0), e.sum(0)])

    def squares(self, w: Real, x: Real) -> Single:
        """sum over rows of g_j(x)^2: per-row gradients are outer products, so their squares are too."""
        _, h1, h2, d1, d2 = (part * part for part in self.passes(w, x))
        ones = np.full(1, x.shape[0])
        return self.join([(x * x).T @ d1, d1.sum(0), h1.T @ d2, d2.sum(0), h2.sum(0), ones]) / np.float32(self.q)

    def predict(self, w: Real, z: Real, x: Real) -> tuple[Real, Real]:
        """(f, sigma) of eqs. 1 and 2 for every row."""
        f, h1, h2, d1, d2 = self.passes(w, x)
        i1, ib1, i2, ib2, i3, ib3 = self.split(1 / z)
        total = np.einsum("ij,ij->i", (x * x) @ i1 + ib1, d1 * d1)
        total += np.einsum("ij,ij->i", (h1 * h1) @ i2 + ib2, d2 * d2)
        total += (h2 * h2) @ i3 + ib3
        return f, np.sqrt(total / np.float32(self.q))
