"""Features and rewards on a common scale, trimmed so that one liar cannot squeeze the honest clients into one point."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from fedcohort.core import stats
from fedcohort.core.constraints import Interval
from fedcohort.core.table import Table
from fedcohort.selectors._parts.scoring import sample
from fedcohort.types import Mask, Real

Double = NDArray[np.float64]
Trim = Annotated[float, Interval(0, 0.5, ends="[)")]  # share trimmed at each end: the largest always, against one liar

CLIP = 3.0  # standard deviations kept
FEW = 4  # fewer rewards than this have no meaningful standard deviation


@dataclass
class MovingReward(Table):
    """Moving statistics of the rewards, for cohorts of fewer than four."""

    level: float = 0.0  # moving mean of rewards
    spread: float = 0.0  # moving deviation around it; 0: none yet


@dataclass(frozen=True, slots=True)
class Scale:
    """How columns are scaled: x = clip((clip(f, low, high) - centre) * factor). Unknown entries become `fill`."""

    low: Real
    high: Real
    centre: Real
    factor: Real
    fill: Real  # stands for what is not known of a client
    clip: float = np.inf

    @classmethod
    def fit(cls, raw: Real, have: Mask, scaling: str, trim: float) -> Scale:
        """From the known entries of every column, trimmed. A constant column becomes 0 under "zscore"."""
        d = raw.shape[1]
        low, high, centre, factor, fill = (np.zeros(d, np.float32) for _ in range(5))
        for j in range(d):
            f = raw[have[:, j], j].astype(np.float64)
            if f.size == 0:
                continue
            f = np.asarray(stats.winsorise(f, 1 - trim, trim), np.float64)
            low[j], high[j], fill[j] = (f.min(), f.max(), f.mean()) if trim > 0 else (-np.inf, np.inf, f.mean())
            centre[j] = fill[j] if scaling == "zscore" else 0.0
            size = {"raw": 1.0, "l2": float(np.sqrt(np.sum(f * f))), "zscore": float(f.std())}[scaling]
            factor[j] = 1.0 / size if size > 1e-6 * abs(float(centre[j])) and size > 0 else 0.0
        if scaling == "zscore":
            factor /= np.float32(np.sqrt(d))  # keeps |x| near 1, as the bound on theta assumes
        return cls(low, high, centre, factor, fill, CLIP / float(np.sqrt(d)) if scaling == "zscore" else np.inf)

    def apply(self, raw: Real, have: Mask) -> Real:
        """The scaled columns, in place."""
        np.clip(raw, self.low, self.high, out=raw)
        np.copyto(raw, self.fill, where=~have)
        raw -= self.centre
        raw *= self.factor
        if self.clip < np.inf:
            np.clip(raw, -self.clip, self.clip, out=raw)
        return raw


def standardise(s: MovingReward, r: Double, trim: float) -> Double:
    """The rewards of one round, trimmed, at mean 0 and deviation 1; fewer than four are set against past rounds.

    Whatever their number, none counts as further than ten deviations of past rounds from their mean.
    """
    if r.size == 0:
        return r
    first = s.spread == 0
    if not first:
        r = np.clip(r, s.level - 10 * s.spread, s.level + 10 * s.spread)
    if r.size >= FEW:
        r = np.asarray(stats.winsorise(r, 1 - trim, trim), np.float64)
        y = stats.zscore(r / max(float(np.abs(r).max()), 1e-300), CLIP)
    else:
        y = np.zeros(r.size) if first else np.clip((r - s.level) / s.spread, -CLIP, CLIP)
    mean = float(r.mean())
    s.level = mean if first else 0.9 * s.level + 0.1 * mean
    deviation = max(float(r.std()), abs(mean - s.level))
    s.spread = max(deviation, 0.1 * abs(s.level)) if first else 0.9 * s.spread + 0.1 * deviation
    return np.asarray(y, np.float64)


def quantile_range(x: Real, known: Mask, lower: float, upper: float) -> tuple[float, float]:
    """(low, width) of the known entries between two of their quantiles."""
    at = sample(np.flatnonzero(known))
    if at.size == 0:
        return 0.0, 0.0
    lo, hi = int(lower * (at.size - 1)), int(upper * (at.size - 1))
    part = np.partition(x[at], (lo, hi))
    return float(part[lo]), float(part[hi] - part[lo])


def min_max(x: Real, known: Mask, within: tuple[float, float], unknown: float = 0.5) -> Real:
    """Scaled to [0, 1] between (low, low + width); a constant becomes 1/2, and what is not known `unknown`."""
    low, width = within
    scaled = np.clip((x - np.float32(low)) / np.float32(width), 0, 1) if width > 1e-8 else np.full_like(x, 0.5)
    return np.where(known, scaled, np.float32(unknown))
