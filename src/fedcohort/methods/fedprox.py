"""FedProx: a proximal term keeps local models near the broadcast one.

    Tian Li, Anit Kumar Sahu, Manzil Zaheer, Maziar Sanjabi, Ameet Talwalkar, Virginia Smith.
    Federated Optimization in Heterogeneous Networks. MLSys 2020. https://arxiv.org/abs/1812.06127

Client k minimises, from the broadcast parameters w, inexactly and for as long as it can afford,

    h_k(v) = F_k(v) + (mu / 2) |v - w|^2,    so that every gradient gains    mu (v - w)                  (1)

and the server averages over those that returned, R:

    uniform      w+ = (1 / |R|) sum_R w_k                                                                (2)
    normalised   w+ = sum_R n_k w_k / sum_R n_k                                                          (3)

(2) is the paper's, together with a selector that draws in proportion to n_k with replacement; (3) is what the
released code does, together with a selector that draws uniformly without replacement. The draw is the selector's.

Departures from the paper
    * The term acts on trainable parameters only, never on buffers, and enters the gradient before momentum.
    * With Adam or weight decay (1) still holds for the gradient, but the step is no longer a proximal step.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, ClassVar

from fedcohort.core.constraints import Choice, NotNegative, Positive
from fedcohort.errors import checked
from fedcohort.methods.base import Buffers
from fedcohort.methods.fedavg import FedAvg
from fedcohort.types import Index, Model, Plan

Form = Annotated[str, Choice("normalised", "uniform")]


class FedProx(FedAvg):
    """FedAvg on clients that are pulled back to the broadcast model while they train.

    Args:
        mu: weight of the pull back to the broadcast model; 0 is FedAvg [mu].
        form: "normalised" (eq. 3) or "uniform" (eq. 2).
        server_lr: factor on the step of the server.
        buffers: what becomes of float buffers: averaged, or as the server has them.

    >>> import numpy as np
    >>> from fedcohort.types import Model, Plan
    >>> FedProx(mu=0.5).prepare(Plan(), Model(np.zeros(2)), np.arange(3)).prox
    0.5
    """

    name: ClassVar[str] = "fedprox"

    @checked
    def __init__(
        self,
        *,
        mu: NotNegative = 0.1,  # [mu]
        form: Form = "normalised",
        server_lr: Positive = 1.0,
        buffers: Buffers = "average",
    ) -> None:
        super().__init__(form=form, server_lr=server_lr, buffers=buffers)
        self.mu = mu

    def prepare(self, plan: Plan, model: Model, clients: Index) -> Plan:
        """Eq. 1."""
        del model, clients
        return replace(plan, prox=self.mu)
