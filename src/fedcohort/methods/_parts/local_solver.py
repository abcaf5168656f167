"""What a linear local solver does to gradients: how much one unit of gradient weighs in the local change.

Plan's solver, with step size eta, momentum rho and proximal weight mu, run for tau steps from w:

    b_s = rho b_{s-1} + g_s + mu (v_s - w)         v_{s+1} = v_s - eta b_s                                (1)

is linear in the gradients: v_tau - w = -eta sum_s a_s g_s. Since (1) does not change over time, a_s is the response,
tau - s steps later, to one unit of gradient. In y = -(v - w) / eta it obeys

    b <- rho b - eta mu y (+ 1 at the first step)  y <- y + b                                             (2)

and |a|_1 is the sum of |y| over tau steps. Closed forms, for the tests: plain SGD tau; momentum alone
[tau - rho (1 - rho^tau) / (1 - rho)] / (1 - rho); the proximal term alone [1 - (1 - eta mu)^tau] / (eta mu).

Weight decay lambda adds lambda v to g_s: it belongs to the gradient of the regularised loss, not to a.
"""

from __future__ import annotations

import numpy as np

from fedcohort.errors import ContractError
from fedcohort.methods.base import Double
from fedcohort.protocols import Aggregation
from fedcohort.types import Index, Plan, Updates


def gradient_weight(steps: Index, lr: Double, *, momentum: float, prox: float) -> Double:
    """|a_k|_1 of every client by eq. 2: `steps` and `lr` have one entry per client."""
    steps = np.asarray(steps, np.int64)
    if momentum == 0.0 and prox == 0.0:
        return np.maximum(steps, 0).astype(np.float64)
    total = np.zeros(steps.size)
    velocity = np.ones(steps.size)
    position = np.ones(steps.size)
    pull = lr * prox
    for step in range(int(steps.max(initial=0))):
        total += np.where(step < steps, np.abs(position), 0.0)
        velocity = momentum * velocity - pull * position
        position = position + velocity
    return total


def learning_rates(plan: Plan, updates: Updates, context: Aggregation) -> Double:
    """The learning rate of every row: a plan's array has one entry per dispatched client."""
    rate = np.asarray(plan.lr, np.float64)
    if rate.ndim == 0:
        return np.full(len(updates), float(rate))
    asked = np.asarray(context.dispatched, np.int64)
    if rate.size != asked.size:
        raise ContractError(
            f"{rate.size} learning rates for {asked.size} dispatched clients",
            "a plan has one rate, or one per dispatched client",
            "give the plan that the cohort trained with",
        )
    order = np.argsort(asked, kind="stable")
    place = np.minimum(np.searchsorted(asked[order], updates.clients), asked.size - 1)
    known = asked[order][place] == updates.clients
    return np.where(known, rate[order][place], float(rate.mean()))


def path_lengths(updates: Updates, context: Aggregation) -> Double:
    """eta_k |a_k|_1: how far each client moves per unit of a constant gradient."""
    plan = context.plan
    rate = learning_rates(plan, updates, context)
    return rate * gradient_weight(updates.steps, rate, momentum=plan.momentum, prox=plan.prox)
