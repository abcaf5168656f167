"""Norm clipping with an adaptive bound, and zeroing of what lies far beyond it.

    Galen Andrew, Om Thakkar, H. Brendan McMahan, Swaroop Ramaswamy.
    Differentially Private Learning with Adaptive Clipping. NeurIPS 2021. https://arxiv.org/abs/1905.03871

The server tracks a quantile Q of the lengths r_k = |w_k - w|. With b the share of rows with r_k <= Q:

    Q+ = Q exp(-eta (b - gamma))                                                                         (1)

    x_k = (w_k - w) min(1, C / r_k)            C = clip Q                                                (2)
    rows with r_k > Z are left out             Z = zero Q                                                (3)
    w+ = w + mean of the x_k that are left                                                               (4)

Departures from the paper
    * No noise: this is the robust part without the privacy part, as in the robust aggregators of other frameworks.
    * Q starts at the gamma quantile of the first lengths that are not zero, not at a number that one has to know.
    * gamma = 0.5 and both bounds are multiples of the same Q: with a high quantile, 20 % of malicious clients
      would pull the bound up.
    * A row beyond Z is left out of the mean and not accepted, instead of averaged as a zero.
    * Q also moves in a round in which every row was left out, or it would never catch up.
    * `bound` fixes C. Rows count alike by default: a malicious client may state any number of samples.
    * Buffers and counters are merged by their median over the rows that were kept.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from fedcohort.core.constraints import Interval, Positive
from fedcohort.core.table import Table, TableError
from fedcohort.errors import checked
from fedcohort.methods._parts.robust import RobustMethod, row_norms
from fedcohort.methods.base import Buffers, Double, Step, Weighting, shares, weighted_sum
from fedcohort.protocols import Aggregation
from fedcohort.types import Model, Updates


@dataclass
class NormClipState(Table):
    """What the server remembers between rounds."""

    level: float = math.nan  # [Q]; NaN before the first update that moves


class NormClip(RobustMethod):
    """Shorten long updates and leave out extreme ones; the bound follows a quantile of the lengths.

    Args:
        clip: longer updates are shortened to this multiple of the tracked quantile [C / Q].
        zero: updates longer than this multiple of it are left out; inf: none [Z / Q].
        bound: a fixed length instead of `clip` [C].
        quantile: which quantile of the lengths is tracked [gamma].
        rate: how fast it is tracked [eta_C].
        weighting: whether rows count alike or by their samples.
        buffers: what becomes of float buffers: averaged, or as the server has them.

    >>> from fedcohort.testing import example_round
    >>> NormClip().aggregate(*example_round([[1.0], [1.0], [1.0], [100.0]])).accepted
    array([ True,  True,  True, False])
    """

    name: ClassVar[str] = "norm-clip"
    prefix = "norm-clip."
    state: NormClipState

    @checked
    def __init__(
        self,
        *,
        clip: Positive = 1.0,  # C as a multiple of Q
        zero: Annotated[float, Interval(1)] = 5.0,  # Z as a multiple of Q
        bound: Positive | None = None,  # [C]
        quantile: Annotated[float, Interval(0, 1, ends="()")] = 0.5,  # [gamma]
        rate: Annotated[float, Interval(0, 100)] = 0.2,  # [eta_C]
        weighting: Weighting = "uniform",
        buffers: Buffers = "average",
    ) -> None:
        super().__init__(buffers=buffers)
        self.clip, self.zero, self.bound, self.quantile, self.rate = clip, zero, bound, quantile, rate
        self.weighting, self.state = weighting, NormClipState()
        if clip < 1.0 or bound is not None:
            self.exempt = {"single_client": "the only update may be clipped"}

    def combine(self, model: Model, updates: Updates, context: Aggregation) -> Step:
        """Eq. 2, 3, 4 with the level as it was, then eq. 1."""
        length, s = row_norms(updates.delta), self.state
        if math.isnan(s.level):
            if not (length > 0).any():
                return Step(np.zeros(model.params.size), np.ones(len(updates), np.bool_))
            s.level = float(np.quantile(length[length > 0], self.quantile))
        kept = length <= self.zero * s.level
        bound = self.clip * s.level if self.bound is None else self.bound
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
            below = float((length <= self.state.level).mean())
            self.state.level *= math.exp(-self.rate * (below - self.quantile))

    def check_state(self, fresh: Any) -> None:
        """A level is positive and finite, or NaN before the first."""
        if not (math.isnan(fresh.level) or 0 < fresh.level < math.inf):
            raise TableError("the level is not a positive number")
