"""FedAvg: federated averaging.

    H. Brendan McMahan, Eider Moore, Daniel Ramage, Seth Hampson, Blaise Agüera y Arcas.
    Communication-Efficient Learning of Deep Networks from Decentralized Data. AISTATS 2017.

With n_k samples at client k, p_k = n_k / sum of all n, R those that returned and S those that were asked:

    normalised   w+ = sum_R n_k w_k / sum_R n_k                                                          (1)
    original     w+ = sum_{k not in R} p_k w + sum_{k in R} p_k w_k                                      (2)
    uniform      w+ = (1 / |R|) sum_R w_k                                                                (3)

(2) equals w + P_R ((1) - w) with P_R = sum_R p_k: a server learning rate that depends on who came back.

Departures from the paper
    * (2) keeps w for those that were asked and did not return, too: the paper assumes that all return.
    * A client drawn m times by a selector that samples with replacement is trained once and counted m times.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import numpy as np

from fedcohort.core.constraints import Choice, Positive
from fedcohort.errors import checked
from fedcohort.methods.base import (
    Buffers,
    MethodBase,
    Step,
    data_weights,
    multiplicity,
    normalised,
    total_samples,
    weighted_sum,
)
from fedcohort.protocols import Aggregation
from fedcohort.types import Model, Updates

Form = Annotated[str, Choice("normalised", "original", "uniform")]


class FedAvg(MethodBase):
    """Average the returned models, weighted by their samples.

    Args:
        form: "normalised" (eq. 1), "original" (eq. 2) or "uniform" (eq. 3).
        server_lr: factor on the step of the server.
        buffers: what becomes of float buffers: averaged, or as the server has them.

    >>> from fedcohort.testing import example_round
    >>> FedAvg().aggregate(*example_round([[0.0], [4.0]], weight=[3, 1])).model.params
    array([1.], dtype=float32)
    """

    name: ClassVar[str] = "fedavg"

    @checked
    def __init__(self, *, form: Form = "normalised", server_lr: Positive = 1.0, buffers: Buffers = "average") -> None:
        super().__init__(buffers=buffers)
        self.form, self.server_lr = form, server_lr
        self.needs = frozenset({"samples"} if form == "original" else ())
        if form == "original" or server_lr != 1.0:
            self.exempt = {"single_client": "the step is scaled"}

    def combine(self, model: Model, updates: Updates, context: Aggregation) -> Step:
        """Eq. 1, 2 or 3 on the update matrix."""
        del model
        if self.form == "uniform":
            weight = normalised(multiplicity(updates, context))
        elif self.form == "normalised":
            weight = data_weights(updates, context)
        else:
            weight = np.asarray(updates.weight, np.float64) * multiplicity(updates, context) / total_samples(context)
        change = self.server_lr * weighted_sum(weight, updates.delta)
        return Step(change, np.ones(len(updates), np.bool_))
