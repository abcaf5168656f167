"""Quadratic clients and a plain local trainer, written out step by step: the reference that methods are held against.

F_k(w) = 1/2 sum_j a_kj (w_j - c_kj)^2, so that the gradient at w is a_k (w - c_k). No engine is involved.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fedcohort.protocols import Aggregated, Aggregation, Method
from fedcohort.types import Model, Plan, Updates


@dataclass
class Clients:
    a: np.ndarray  # (N, d) curvatures
    c: np.ndarray  # (N, d) centres
    n: np.ndarray  # (N,) samples
    tau: np.ndarray  # (N,) local steps

    @classmethod
    def random(cls, count: int, d: int, seed: int, *, steps: Sequence[int] | None = None) -> "Clients":
        rng = np.random.default_rng(seed)
        tau = rng.integers(1, 12, count) if steps is None else np.asarray(steps)
        return cls(rng.uniform(0.5, 2.0, (count, d)), rng.normal(size=(count, d)), rng.integers(1, 30, count), tau)

    def gradient(self, k: int, w: np.ndarray) -> np.ndarray:
        return self.a[k] * (w - self.c[k])

    def optimum(self, weight: np.ndarray) -> np.ndarray:
        """Minimiser of sum_k weight_k F_k."""
        return (weight[:, None] * self.a * self.c).sum(axis=0) / (weight[:, None] * self.a).sum(axis=0)

    def local(self, k: int, w: np.ndarray, plan: Plan, row: int, m: int) -> np.ndarray:
        """tau_k steps of SGD with momentum, proximal term and correction, from w; returns where they end."""
        lr = float(np.broadcast_to(plan.lr, (m,))[row])
        fix = 0.0 if plan.correction is None else np.broadcast_to(plan.correction, (m, w.size))[row].astype(float)
        v, b = w.copy(), np.zeros_like(w)
        for _ in range(int(self.tau[k])):
            g = self.gradient(k, v) + plan.prox * (v - w) + fix + plan.weight_decay * v
            b = plan.momentum * b + g
            v = v - lr * b
        return v


def one_round(
    method: Method,
    clients: Clients,
    model: Model,
    cohort: np.ndarray,
    plan: Plan,
    *,
    returned: np.ndarray | None = None,
    population: int | None = None,
    index: int = 0,
) -> Aggregated:
    """Ask a cohort, train it, and let the method aggregate those that returned."""
    cohort = np.sort(np.asarray(cohort))
    prepared = method.prepare(plan, model, cohort)
    w = model.params.astype(float)
    ends = np.array([clients.local(int(k), w, prepared, i, cohort.size) for i, k in enumerate(cohort)])
    extras = {}
    if "full_gradient" in prepared.measure:
        extras["full_gradient"] = np.array([clients.gradient(int(k), w) for k in cohort]).astype(np.float32)
    updates = Updates(
        clients=cohort,
        delta=(ends - w).astype(np.float32).reshape(cohort.size, w.size),
        weight=clients.n[cohort].astype(float),
        steps=clients.tau[cohort],
        extras=extras,
    )
    if returned is not None:
        updates = updates.rows(np.isin(cohort, returned))
    size = clients.n.size if population is None else population
    context = Aggregation(index=index, plan=prepared, population=size, samples=clients.n[:size], dispatched=cohort)
    return method.aggregate(model, updates, context)


def play(
    method: Method,
    clients: Clients,
    rounds: int,
    plan: Plan,
    choose: Callable[[int], np.ndarray] | None = None,
    lost: Callable[[int, np.ndarray], np.ndarray] | None = None,
) -> np.ndarray:
    """Many rounds from zero; the final parameters. `choose` picks the cohort, `lost` says who never arrives."""
    model = Model(np.zeros(clients.a.shape[1], np.float32))
    everyone = np.arange(clients.n.size)
    for t in range(rounds):
        cohort = everyone if choose is None else np.sort(choose(t))
        returned = None if lost is None else np.setdiff1d(cohort, lost(t, cohort))
        model = one_round(method, clients, model, cohort, plan, returned=returned, index=t).model
    return model.params.astype(float)
