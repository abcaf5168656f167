"""Norm clipping with an adaptive bound, and zeroing of what lies far beyond it.

    Galen Andrew, Om Thakkar, H. Brendan McMahan, Swaroop Ramaswamy.
    Differentially Private Learning with Adaptive Clipping. NeurIPS 2021. https://arxiv.org/abs/1905.03871

The server tracks a quantile Q of the lengths r_k = |w_k - w|. With b the share of rows with r_k <= Q:

    Q+ = Q exp(-eta (b - gamma))                                                                         (1)

    x_k = (w_k - w) min(1, C / r_k)            C = clip Q                                                (2)
    rows with r_k > Z are left out             Z = zero Q                                                (3)
    w+ = w + mean of the x_k that are left                                                               (4)

Departures from the paper
    * No noise: this is the robust part without the privacy part, as robust aggregators of other frameworks have it.
    * Q starts at the gamma quantile of the first lengths that are not zero, not at a number that one has to know.
    * gamma = 0.5 and both bounds are multiples of the same Q: a high quantile would follow 20 % of liars up.
    * A row beyond Z is left out of the mean and not accepted, instead of averaged as a zero.
    * Q also moves in a round in which every row was left out, or it would never catch up.
    * `bound` fixes C. Rows count alike by default: a liar may state any number of samples.
    * Buffers and counters are merged by their median over the rows that were kept.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedcohort.errors import check
from fedcohort.methods._parts import state
from fedcohort.methods._parts.robust import Robust, check_weighting, row_norms, shares
from fedcohort.methods.base import Double, Step, weighted_sum
from fedcohort.protocols import Aggregation
from fedcohort.types import Arrays, Model, Updates


class NormClip(Robust):
    """Shorten long updates, leave out absurd ones. The paper's symbols are given in brackets."""

    name: ClassVar[str] = "norm-clip"

    def __init__(
        self,
        *,
        clip: float = 1.0,  # C as a multiple of Q
        zero: float = 5.0,  # Z as a multiple of Q; inf: leave nothing out
        bound: float | None = None,  # [C] fixed, in place of clip * Q
        quantile: float = 0.5,  # [gamma]
        rate: float = 0.2,  # [eta_C]
        weighting: str = "uniform",
        buffers: str = "average",
    ) -> None:
        super().__init__(buffers=buffers)
        check(clip > 0, f"clip = {clip}", "the clipping multiple must be positive", "use 1.0")
        check(zero >= 1, f"zero = {zero}", "the zeroing multiple must be at least 1", "use 5.0")
        check(bound is None or bound > 0, f"bound = {bound}", "a fixed bound must be positive", "use None to adapt")
        check(0 < quantile < 1, f"quantile = {quantile}", "a quantile lies strictly between 0 and 1", "use 0.5")
        check(rate >= 0, f"rate = {rate}", "the rate must not be negative", "use 0.2")
        self.clip, self.zero, self.bound, self.quantile, self.rate = clip, zero, bound, quantile, rate
        self.weighting = check_weighting(weighting)
        if clip < 1.0 or bound is not None:
            self.exempt = {"single_client": "the only update may be clipped"}
        self.level = math.nan  # [Q]; nothing is known before the first update that moves

    def combine(self, model: Model, updates: Updates, context: Aggregation) -> Step:
        """Eq. 2, 3, 4 with the level as it was, then eq. 1."""
        length = row_norms(updates.delta)
        if math.isnan(self.level):
            if not (length > 0).any():
                return Step(np.zeros(model.params.size), np.ones(len(updates), np.bool_))
            self.level = float(np.quantile(length[length > 0], self.quantile))
        kept = length <= self.zero * self.level
        bound = self.clip * self.level if self.bound is None else self.bound
        info = {"clip": bound, "clipped": float((length[kept] > bound).sum()), "zeroed": float((~kept).sum())}
        self._track(length)
        if not kept.any():
            return Step(np.zeros(model.params.size), kept, info)
        rows = updates.rows(kept)
        shorten = bound / np.maximum(length[kept], bound)
        return Step(weighted_sum(shares(self.weighting, rows, context) * shorten, rows.delta), kept, info)

    def _track(self, length: Double) -> None:
        """Eq. 1; a round in which nobody moved says nothing about lengths."""
        if (length > 0).any():
            below = float((length <= self.level).mean())
            self.level *= math.exp(-self.rate * (below - self.quantile))

    def state_dict(self) -> Arrays:
        """The tracked level; NaN before the first."""
        return state.label(self.name, {"level": np.float64(self.level)})

    def load_state_dict(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Inverse of :meth:`state_dict`."""
        level = float(state.unlabel(self.name, arrays, {"level": ("float64", 0)})["level"])
        state.require(math.isnan(level) or 0 < level < math.inf, self.name, "the level is not a positive number")
        self.level = level
