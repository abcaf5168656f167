"""FedBiO: federated learning as a bilevel problem. OUR CONSTRUCTION, not the paper's experiment.

    Junyi Li, Feihu Huang, Heng Huang. FedBiO: communication-efficient federated bilevel optimisation (2302.06701).
    (Only its abstract was at hand. FLASH lists FedBiO in its Table I and does not say how it was used, so both variants
    are ours, and every number made with them must be labelled as such.)

An outer variable x is moved so that the model trained under it does well on validation data V:

    min_x f(w(x)),   w(x) = argmin_w g(w, x).

    variant="clients"  (B)  x: one number per client. With a_k proportional to n_k exp(x_k) over the cohort,
        w+ = w + sum_k a_k D_k                                                                           (1)
        df/dx_k = a_k ( <D_k, grad f(w+)> - sum_i a_i <D_i, grad f(w+)> ),  exact for given updates D     (2)
        and x takes `outer_steps` steps against (2) before (1) is applied.
    variant="samples"  (A)  x: one number per training sample, kept by its owner. See fedbio_samples.

Departures from the paper
    * See above. In (2) the inner products are divided by |grad f| max_k |D_k|, so that the step size has no unit.
    * x survives rounds without its client; a client never seen starts at 0, where (1) is FedAvg.
    * clean_validation=True takes V from the server's held-out split. False takes the clients' own validation parts,
      with whatever label noise they carry; in a small example only the clean split finds the noisy samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from fedcohort.core.constraints import Choice, CountOrZero, NotNegative, Positive
from fedcohort.core.stats import softmax
from fedcohort.core.table import Table, column
from fedcohort.errors import checked
from fedcohort.methods._parts.fedbio_samples import CleaningSettings, SampleCleaning, outer_gradient
from fedcohort.methods.base import Buffers, Double, MethodBase, Step, as_drawn, data_weights, weighted_sum
from fedcohort.protocols import Aggregation
from fedcohort.types import Index, Model, Plan, Real, Updates


@dataclass
class ClientWeights(Table):
    """Variant B: what the server remembers of every client."""

    x: Real = column(0.0)


class FedBiO(MethodBase):
    """Validation data decide how much each client (B) or each sample (A) counts. Our construction.

    Args:
        variant: what gets a weight: clients (B) or samples (A).
        outer_lr: step of the weights [eta].
        outer_steps: steps of the weights in a round.
        linear_lr: variant A: step of the linear system [rho].
        linear_steps: variant A: steps of the linear system [I].
        damping: variant A: added to the Hessian.
        clean_validation: validation data of the server; otherwise those of the clients.
        buffers: what becomes of float buffers: averaged, or as the server has them.

    >>> from fedcohort.testing import LinearEvaluator, example_round
    >>> model, updates, context = example_round(np.eye(3, 12), server_evaluator=LinearEvaluator())
    >>> bool(FedBiO().aggregate(model, updates, context).info["fedbio_moved"] > 0)
    True
    """

    name: ClassVar[str] = "fedbio"
    state: ClientWeights | SampleCleaning

    @checked
    def __init__(
        self,
        *,
        variant: Annotated[str, Choice("clients", "samples")] = "clients",
        outer_lr: Positive = 2.0,  # [eta]
        outer_steps: CountOrZero = 5,
        linear_lr: Positive = 0.1,  # [rho] variant A: step of the linear system
        linear_steps: CountOrZero = 10,  # [I] variant A
        damping: NotNegative = 0.01,  # variant A: added to the Hessian
        clean_validation: bool = True,
        buffers: Buffers = "average",
    ) -> None:
        super().__init__(buffers=buffers)
        self.variant, self.outer_lr, self.outer_steps = variant, outer_lr, outer_steps
        self.clean_validation = clean_validation
        settings = CleaningSettings(outer_lr, linear_lr, linear_steps, damping, clean_validation)
        self.state = SampleCleaning(settings) if variant == "samples" else ClientWeights()

    def prepare(self, plan: Plan, model: Model, clients: Index) -> Plan:
        """Variant A weighs samples; variant B changes nothing at the client."""
        del model
        return self.state.prepare(plan, clients) if isinstance(self.state, SampleCleaning) else plan

    def combine(self, model: Model, updates: Updates, context: Aggregation) -> Step:
        """Variant A averages and then learns its sample weights; variant B is eq. 1 and 2."""
        share = data_weights(updates, context)
        everybody = np.ones(len(updates), np.bool_)
        if isinstance(self.state, SampleCleaning):
            change = weighted_sum(share, updates.delta)
            own = self.merge(model, as_drawn(updates, context))[0]
            info = self.state.learn(model.params + change, updates.clients, share, context, own)
            return Step(change, everybody, info)
        self.state.grow(max(context.population, int(updates.clients.max()) + 1))
        x = self.state.x[updates.clients].astype(np.float64)
        for _ in range(self.outer_steps if len(updates) > 1 else 0):
            x -= self.outer_lr * self._hypergradient(model, updates, share, x, context)
        self.state.x[updates.clients] = x
        weight = client_weights(share, x)
        info = {"fedbio_top_weight": float(weight.max()), "fedbio_moved": float(np.abs(weight - share).sum() / 2)}
        return Step(weighted_sum(weight, updates.delta), everybody, info)

    def _hypergradient(self, model: Model, updates: Updates, share: Double, x: Double, context: Aggregation) -> Double:
        """Eq. 2 without its unit."""
        weight = client_weights(share, x)
        point = model.params + weighted_sum(weight, updates.delta)
        own = self.merge(model, as_drawn(updates, context))[0]
        gradient = outer_gradient(point, updates.clients, share, context, clean=self.clean_validation, buffers=own)
        length = np.sqrt(np.einsum("kp,kp->k", updates.delta, updates.delta, dtype=np.float64))
        unit = float(np.linalg.norm(gradient) * length.max())
        if not 0 < unit < np.inf:
            return np.zeros(x.size)
        return hypergradient(weight, updates.delta, gradient) / unit


def client_weights(share: Double, x: Double) -> Double:
    """a_k: proportional to share_k exp(x_k); a share of zero stays zero."""
    with np.errstate(divide="ignore"):
        return np.asarray(softmax(np.log(share) + x), np.float64)


def hypergradient(weight: Double, delta: Real, gradient: Double) -> Double:
    """Eq. 2."""
    inner = np.array([float(row.astype(np.float64) @ gradient) for row in delta])
    out: Double = weight * (inner - weight @ inner)
    return out
