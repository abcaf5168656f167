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

With `adapt` = a > 0 the pull follows the loss L of the model, from `mu` on, as the paper does in its section 5.3.2:

    mu <- mu + a where L rose,   max(mu - a, 0) after L fell five times in a row                         (4)

Departures from the paper
    * L of (4) is of the server's validation data; the paper takes the training loss of all clients.
    * After five falls and a smaller pull, the next five are counted anew.
    * The term acts on trainable parameters only, never on buffers, and enters the gradient before momentum.
    * With Adam or weight decay (1) still holds for the gradient, but the step is no longer a proximal step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

from fedcohort.core.constraints import Choice, NotNegative, Positive
from fedcohort.core.table import Table
from fedcohort.errors import checked
from fedcohort.methods._parts.server_validation import mean_loss, validation_evaluator
from fedcohort.methods.base import Buffers
from fedcohort.methods.fedavg import FedAvg
from fedcohort.protocols import Aggregated, Aggregation
from fedcohort.types import Index, Model, Plan, Updates

Form = Annotated[str, Choice("normalised", "uniform")]
FALLS = 5  # of eq. 4


@dataclass
class PullState(Table):
    """What eq. 4 remembers."""

    mu: float = 0.0
    loss: float = -1.0  # of the last model; negative: none yet
    falls: int = 0  # in a row


class FedProx(FedAvg):
    """FedAvg on clients that are pulled back to the broadcast model while they train.

    Args:
        mu: weight of the pull back to the broadcast model; 0 is FedAvg [mu].
        adapt: by how much the pull follows the validation loss (eq. 4); 0: it stays `mu`.
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
        adapt: NotNegative = 0.0,
        form: Form = "normalised",
        server_lr: Positive = 1.0,
        buffers: Buffers = "average",
    ) -> None:
        super().__init__(form=form, server_lr=server_lr, buffers=buffers)
        self.mu, self.adapt = mu, adapt
        if adapt:
            self.state, self.prefix = PullState(mu), f"{self.name}."

    def prepare(self, plan: Plan, model: Model, clients: Index) -> Plan:
        """Eq. 1."""
        del model, clients
        return replace(plan, prox=self.state.mu if isinstance(self.state, PullState) else self.mu)

    def apply(self, model: Model, updates: Updates, context: Aggregation) -> Aggregated:
        """Eq. 2 or 3, then eq. 4."""
        done = super().apply(model, updates, context)
        if not isinstance(self.state, PullState):
            return done
        evaluator = validation_evaluator(context.server_evaluator, f"{self.name}(adapt=...)")
        self._follow(self.state, mean_loss(done.model.params, evaluator, done.model.buffers))
        return replace(done, info={**done.info, "fedprox_mu": self.state.mu})

    def _follow(self, s: PullState, loss: float) -> None:
        """Eq. 4."""
        rose, fell = 0 <= s.loss < loss, loss < s.loss
        s.falls = s.falls + 1 if fell else 0
        if rose:
            s.mu += self.adapt
        elif s.falls == FALLS:
            s.mu, s.falls = max(s.mu - self.adapt, 0.0), 0
        s.loss = loss
