"""FedPdp: averaging under partial participation, each client weighted by its share of *all* data.

    Xiang Li, Kaixuan Huang, Wenhao Yang, Shusen Wang, Zhihua Zhang.
    On the Convergence of FedAvg on Non-IID Data. ICLR 2020. https://arxiv.org/abs/1907.02189   (scheme II)

With p_k = n_k / sum of all n, N clients, S drawn uniformly without replacement:

    model        w+ = sum_S p_k (N / |S|) w_k                                                            (1)
    delta        w+ = w + sum_S p_k (N / |S|) (w_k - w)                                                  (2)
    normalised   w+ = w + sum_S p_k (w_k - w) / sum_S p_k                                                (3)

The weights of (1) sum to one on average only: unless all n_k are equal, the whole model is stretched or shrunk at
random every round. (2) has the same mean and leaves the model alone when nobody moves; it is the default.

N / |S| is the inverse of the probability pi_k that k is in S, for a uniform draw. In general, with R of S returned,

    weight_k = (p_k / pi_k) (|S| / |R|)                                                                  (4)

Departures from the paper
    * (2) is ours, and the default. (1) is the paper's.
    * Where the selector states its inclusion probabilities, (4) replaces p_k N / |S| in (1) and (2).
    * Sums run over R, those that returned; |S| / |R| makes up for missing replies, as if they were missing at random.
    * Where the probabilities are unknown, (2) falls back to (3): N / |S| would not be an inverse probability.
      `unknown="uniform"` uses N / |R| all the same. (1) always does.
    * Drawn with replacement and probabilities unknown: weights are multiplied by how often a client was drawn.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import numpy as np

from fedcohort.core.constraints import Choice
from fedcohort.errors import checked
from fedcohort.methods.base import (
    Buffers,
    Double,
    MethodBase,
    Step,
    multiplicity,
    normalised,
    total_samples,
    weighted_sum,
)
from fedcohort.protocols import Aggregation
from fedcohort.types import Model, Updates

Form = Annotated[str, Choice("delta", "model", "normalised")]
Unknown = Annotated[str, Choice("normalise", "uniform")]


class FedPdp(MethodBase):
    """Unbiased averaging of a sample of clients.

    Args:
        form: "delta" (eq. 2), "model" (eq. 1) or "normalised" (eq. 3).
        unknown: where inclusion probabilities are unknown: normalise, or as if the draw had been uniform.
        buffers: what becomes of float buffers: averaged, or as the server has them.

    >>> from fedcohort.testing import example_round
    >>> FedPdp().aggregate(*example_round([[1.0], [3.0]], inclusion=0.5)).model.params
    array([4.], dtype=float32)
    """

    name: ClassVar[str] = "fedpdp"

    @checked
    def __init__(self, *, form: Form = "delta", unknown: Unknown = "normalise", buffers: Buffers = "average") -> None:
        super().__init__(buffers=buffers)
        self.form, self.unknown = form, unknown
        if form != "normalised":
            self.needs = frozenset({"samples"})
            self.exempt = {"single_client": "the weight of one client is not 1 in eq. 1 and 2"}
        if form == "model":
            why = "eq. 1 rescales the model"
            self.exempt = {**self.exempt, "idle": why, "idle_later": why}

    def combine(self, model: Model, updates: Updates, context: Aggregation) -> Step:
        """Eq. 1, 2 or 3."""
        weight = self._weights(updates, context)
        change = weighted_sum(weight, updates.delta)
        if self.form == "model":
            change += (float(weight.sum()) - 1.0) * model.params.astype(np.float64)
        return Step(change, np.ones(len(updates), np.bool_), {"weight_sum": float(weight.sum())})

    def _weights(self, updates: Updates, context: Aggregation) -> Double:
        """Eq. 4 where the design is known, otherwise what the form and `unknown` say."""
        size = np.asarray(updates.weight, np.float64)
        times = multiplicity(updates, context)
        if self.form == "normalised":
            return normalised(size * times)
        share = size / total_samples(context)
        returned = len(updates)
        pi = inclusion(updates, context)
        if pi is not None:
            asked = max(int(np.asarray(context.dispatched).size), returned)
            return share / pi * (asked / returned)
        if self.form == "delta" and self.unknown == "normalise":
            return normalised(size * times)
        return share * times * (context.population / float(times.sum()))


def inclusion(updates: Updates, context: Aggregation) -> Double | None:
    """pi_k of every row, or None unless all are known and make sense."""
    pi = np.array([context.inclusion.get(int(c), np.nan) for c in updates.clients], np.float64)
    return pi if bool(((pi > 0) & (pi <= 1)).all()) else None
