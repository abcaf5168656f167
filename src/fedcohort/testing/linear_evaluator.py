"""A server evaluator small enough to follow: softmax regression on a few made-up samples."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedcohort.core.rng import generator
from fedcohort.types import Index, Real


class LinearEvaluator:
    """classes * (features + 1) parameters: weight (classes, features), then bias. Both splits have `count` samples.

    The default sizes fit the 12 parameters of :class:`~fedcohort.testing.MethodContract`.
    """

    def __init__(self, *, classes: int = 3, features: int = 3, count: int = 30, seed: int = 0) -> None:
        self.classes, self._features = classes, features
        rng = generator(seed, "linear-evaluator")
        self._x = {split: rng.normal(size=(count, features)) for split in ("validation", "unlabelled")}
        self._y = np.asarray(self._x["validation"][:, :classes].argmax(axis=1), np.int64)

    def size(self, split: str) -> int:
        """Samples in this split."""
        return self._x[split].shape[0] if split in self._x else 0

    def labels(self, split: str) -> Index:
        """True labels of the validation split."""
        del split
        return self._y

    def logits(self, params: Real, split: str, buffers: Real | None = None) -> Real:
        """W x + b of every model; it has no buffers."""
        del buffers
        weight, bias = self._split(np.atleast_2d(params))
        return np.asarray(np.einsum("kcf,nf->knc", weight, self._x[split]) + bias[:, None, :], np.float64)

    def gradient(
        self, params: Real, split: str, rows: Index, target: Real, buffers: Real | None = None
    ) -> tuple[float, Real]:
        """Mean soft-target cross-entropy and its gradient; it has no buffers."""
        del buffers
        x = self._x[split][rows]
        z = self.logits(params, split)[0][rows]
        z = z - z.max(axis=1, keepdims=True)
        log = z - np.log(np.exp(z).sum(axis=1, keepdims=True))
        target = np.asarray(target, np.float64)
        slope = (np.exp(log) * target.sum(axis=1, keepdims=True) - target) / max(len(rows), 1)
        gradient = np.concatenate([(slope.T @ x).ravel(), slope.sum(axis=0)])
        return float(-(target * log).sum(axis=1).mean()), gradient.astype(np.float32)

    def _split(self, params: Real) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        cut = self.classes * self._features
        flat = params.astype(np.float64)
        return flat[:, :cut].reshape(-1, self.classes, self._features), flat[:, cut:]
