"""Curves over seeds: the mean and its spread per round, per moment of virtual time, and of participation.

The spread is `experiment.metrics.paired.spread` for all points at once: the range of few seeds, else the percentile
bootstrap interval of the mean, with the same draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedcohort.core.rng import generator
from fedcohort.experiment.metrics.paired import LEAST_SEEDS, LEVEL
from fedcohort.report.views import thin

Double = NDArray[np.float64]
DRAWS = 5000
POINTS = 400
_BLOCK = 64  # points whose quantiles are taken at once


@dataclass(frozen=True)
class Band:
    """A mean curve with its spread over seeds; with one seed there is none, and low and high are None."""

    x: Double
    y: Double
    low: Double | None
    high: Double | None
    seeds: int

    def at(self, keep: NDArray[np.int64]) -> Band:
        """Some of its points."""
        low = None if self.low is None else self.low[keep]
        high = None if self.high is None else self.high[keep]
        return Band(self.x[keep], self.y[keep], low, high, self.seeds)


def band(x: Double, curves: Double, points: int = POINTS) -> Band:
    """Mean over rows (seeds) with its spread, at points where every seed has a value; thinned, spikes kept."""
    known = np.isfinite(curves).all(axis=0)
    x, curves = x[known], curves[:, known]
    mean = curves.mean(axis=0)
    keep = thin(mean, points)
    low, high = spread(curves[:, keep]) if curves.shape[0] > 1 else (None, None)
    return Band(x[keep], mean[keep], low, high, curves.shape[0])


def spread(curves: Double) -> tuple[Double, Double]:
    """Lower and upper end of the spread over rows, for every column."""
    n, m = curves.shape
    if n < LEAST_SEEDS:
        return curves.min(axis=0), curves.max(axis=0)
    drawn = generator(0, "paired").integers(0, n, (DRAWS, n))
    weight = np.stack([(drawn == i).sum(axis=1) for i in range(n)], axis=1) / n
    out = np.empty((2, m))
    for first in range(0, m, _BLOCK):
        part = slice(first, first + _BLOCK)
        out[:, part] = np.quantile(weight @ curves[:, part], [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    return out[0], out[1]


def by_round(accuracies: Sequence[Double], points: int = POINTS) -> Band:
    """Accuracy against rounds (counted from 0, as in the journal), as far as every seed got."""
    length = min(a.size for a in accuracies)
    return band(np.arange(float(length)), np.stack([a[:length] for a in accuracies]), points)


def by_time(clocks: Sequence[Double], accuracies: Sequence[Double], points: int = POINTS) -> Band:
    """Accuracy of the newest measured model at each moment, from when all seeds have one until the first one ends."""
    pairs = [(c[np.isfinite(a)], a[np.isfinite(a)]) for c, a in zip(clocks, accuracies, strict=True)]
    if any(c.size == 0 for c, _ in pairs):
        return band(np.empty(0), np.empty((len(pairs), 0)), points)
    start, end = max(float(c[0]) for c, _ in pairs), min(float(c[-1]) for c, _ in pairs)
    moments = np.unique(np.concatenate([c for c, _ in pairs])) if len(pairs) == 1 else np.linspace(start, end, points)
    grid = np.asarray(moments if end >= start else [], np.float64)
    rows = [a[np.clip(np.searchsorted(c, grid, side="right") - 1, 0, None)] for c, a in pairs]
    return band(grid, np.stack(rows), points)


def by_rank(counts: Sequence[NDArray[np.int64]], points: int = POINTS) -> Band:
    """How often clients were asked, from the most to the least often asked, mean over seeds."""
    length = min(c.size for c in counts)
    place = np.unique(np.linspace(0, length - 1, min(length, points)).astype(np.int64)) if length else np.arange(0)
    rows = np.stack([np.sort(c)[::-1][place].astype(np.float64) for c in counts])
    return band(np.asarray(place + 1, np.float64), rows, max(points, 4) * 2)
