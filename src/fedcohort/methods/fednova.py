"""FedNova: normalised averaging, so that clients who took more steps do not pull harder.

    Jianyu Wang, Qinghua Liu, Hao Liang, Gauri Joshi, H. Vincent Poor.
    Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization. NeurIPS 2020.
    https://arxiv.org/abs/2007.07481

Client k moves by w_k - w = -eta_k sum_s a_{k,s} g_{k,s}. With q_k = n_k / sum_R n:

    d_k = (w - w_k) / |a_k|_1                                                                            (1)
    w+  = w - tau_eff sum_R q_k d_k            tau_eff = sum_R q_k |a_k|_1                               (2)

|a_k|_1 is found by running the scalar recurrence of the true update (methods/_parts/local_solver.py): the number of
steps for plain SGD, more with momentum, less with a proximal term, right for both together.

Departures from the paper
    * Clients may have learning rates of their own: |a_k|_1 is then read as eta_k |a_k|_1 in both equations, without
      which a client's pull would be proportional to its rate. With one rate for all this is (1) and (2).
    * tau_eff is (2) with a proximal term too; the released code takes sum q_k tau_k there: `tau_eff="steps"`.
    * Weight decay is part of the gradient, not of a. No server momentum. Buffers are averaged, never divided.
    * A client that took no step has no direction: it is left out.
    * Adam is not a linear solver, so (1) is undefined. It is refused, or, with `adam="steps"`, |a_k|_1 := tau_k: a
      heuristic.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, ClassVar

import numpy as np

from fedcohort.core.constraints import Choice, NotNegative, Positive
from fedcohort.errors import BadParameter, checked
from fedcohort.methods._parts.local_solver import gradient_weight, learning_rates
from fedcohort.methods.base import Buffers, Double, MethodBase, Step, data_weights, weighted_sum
from fedcohort.protocols import Aggregation
from fedcohort.types import Index, Model, Plan, Updates

TauEff = Annotated[str, Choice("norm", "steps")]
AdamRule = Annotated[str, Choice("refuse", "steps")]


class FedNova(MethodBase):
    """Average the clients' directions, then go as far as the average client went.

    Args:
        mu: weight of a proximal term; 0 leaves that of the plan [mu].
        tau_eff: how far to go: "norm" (eq. 2) or "steps" (the released code).
        adam: with Adam on the clients: refuse it, or count its steps.
        server_lr: factor on the step of the server.
        buffers: what becomes of float buffers: averaged, or as the server has them.

    >>> from fedcohort.testing import example_round
    >>> FedNova().aggregate(*example_round([[1.0], [4.0]], steps=[1, 4])).model.params
    array([2.5], dtype=float32)
    """

    name: ClassVar[str] = "fednova"

    @checked
    def __init__(
        self,
        *,
        mu: NotNegative = 0.0,  # [mu] proximal weight; 0 leaves the plan's
        tau_eff: TauEff = "norm",
        adam: AdamRule = "refuse",
        server_lr: Positive = 1.0,
        buffers: Buffers = "average",
    ) -> None:
        super().__init__(buffers=buffers)
        self.mu, self.tau_eff, self.adam, self.server_lr = mu, tau_eff, adam, server_lr
        if server_lr != 1.0 or tau_eff == "steps":
            self.exempt = {"single_client": "the step is scaled"}

    def prepare(self, plan: Plan, model: Model, clients: Index) -> Plan:
        """Refuse what (1) is not defined for; add the proximal term, if any."""
        del model, clients
        self._check(plan)
        return replace(plan, prox=self.mu) if self.mu > 0 else plan

    def combine(self, model: Model, updates: Updates, context: Aggregation) -> Step:
        """Eq. 2 on the rows that took at least one step."""
        self._check(context.plan)
        moved = np.asarray(updates.steps) > 0
        if not moved.any():
            return Step(np.zeros(model.params.size), moved)
        rows = updates.rows(moved)
        share = data_weights(rows, context)
        rate = learning_rates(context.plan, rows, context)
        length = rate * self._norms(rows, rate, context.plan)
        reach = float(share @ (rate * rows.steps if self.tau_eff == "steps" else length))
        change = self.server_lr * weighted_sum(share * (reach / length), rows.delta)
        return Step(change, moved, {"tau_eff": reach / float(share @ rate)})

    def _norms(self, updates: Updates, rate: Double, plan: Plan) -> Double:
        """|a_k|_1, or tau_k for Adam."""
        if plan.optimiser != "sgd":
            return np.asarray(updates.steps, np.float64)
        return gradient_weight(updates.steps, rate, momentum=plan.momentum, prox=plan.prox)

    def _check(self, plan: Plan) -> None:
        if plan.optimiser != "sgd" and self.adam == "refuse":
            raise BadParameter(
                f"optimiser = {plan.optimiser!r}",
                "FedNova's |a|_1 is defined for linear local solvers only",
                'train with optimiser="sgd", or accept the heuristic |a|_1 = steps with adam="steps"',
            )
