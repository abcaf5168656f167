"""Optimiser steps on stacked parameters: row i of an (m, p) matrix is client i. PyTorch's arithmetic.

    g <- gradient + mu (w - w_broadcast) + correction + weight_decay * w
    SGD   b <- momentum * b + g (first step: b = g),   w <- w - lr b
    Adam  beta 0.9, 0.999, eps 1e-8, bias-corrected

Optimisers start afresh each round, as clients keep nothing between rounds. Only the first `active` rows move, so
clients with more steps than others come first.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcohort.errors import UnknownName, check
from fedcohort.types import Index, Plan

BETA1, BETA2, EPS = 0.9, 0.999, 1e-8
OPTIMISERS = ("sgd", "adam")

Stack = NDArray[np.floating[Any]]


class Stepper:
    """Local optimisers of a cohort, one row each."""

    def __init__(self, start: Stack, plan: Plan, order: Index, cohort: int) -> None:
        """`start` (p,) is the broadcast model; row i is the plan's client `order[i]`, of `cohort` clients."""
        m = order.size
        check_plan(plan, cohort, start.size)
        self.start = start
        self.weights: Stack = np.repeat(start[None], m, axis=0)
        self._plan = plan
        self._lr = plan.lr_of(cohort)[order].astype(start.dtype)[:, None]
        self._taken = 0
        self._correction = _correction(plan, order, start)
        stateful = plan.optimiser == "adam" or plan.momentum != 0.0
        self._first: Stack | None = np.zeros_like(self.weights) if stateful else None
        self._second: Stack | None = np.zeros_like(self.weights) if plan.optimiser == "adam" else None

    def step(self, gradient: Stack, active: int) -> None:
        """Move the first `active` rows along this gradient, which is overwritten."""
        self._taken += 1
        w, g = self.weights[:active], gradient[:active]
        self._add_terms(w, g, active)
        if self._second is not None:
            self._adam(w, g, active)
            return
        if self._first is not None:
            buffer = self._first[:active]
            buffer *= self._plan.momentum
            buffer += g
            g = buffer
        w -= self._lr[:active] * g

    def _add_terms(self, w: Stack, g: Stack, active: int) -> None:
        if self._plan.prox:
            g += self._plan.prox * (w - self.start)
        if self._correction is not None:
            g += self._correction if self._correction.ndim == 1 else self._correction[:active]
        if self._plan.weight_decay:
            g += self._plan.weight_decay * w

    def _adam(self, w: Stack, g: Stack, active: int) -> None:
        assert self._first is not None
        assert self._second is not None
        first, second = self._first[:active], self._second[:active]
        first *= BETA1
        first += (1.0 - BETA1) * g
        second *= BETA2
        second += (1.0 - BETA2) * g * g
        root = np.sqrt(second)
        root /= (1.0 - BETA2**self._taken) ** 0.5
        root += EPS
        w -= self._lr[:active] / (1.0 - BETA1**self._taken) * (first / root)


def check_plan(plan: Plan, m: int, p: int) -> None:
    """Refuse a plan that m clients with p parameters cannot follow."""
    if plan.optimiser not in OPTIMISERS:
        raise UnknownName.among("optimiser", plan.optimiser, OPTIMISERS)
    check(plan.batch_size >= 1, f"batch_size = {plan.batch_size}", "it must be at least 1", "raise it")
    epochs, lr = np.asarray(plan.epochs), np.asarray(plan.lr)
    check(epochs.shape in ((), (m,)), f"epochs of shape {epochs.shape}", "one number, or one per client", f"give {m}")
    check(lr.shape in ((), (m,)), f"lr of shape {lr.shape}", "one number, or one per client", f"give {m}")
    check(bool(np.all(epochs >= 0)), f"epochs = {plan.epochs}", "epochs must not be negative", "raise them")
    if plan.correction is not None:
        shape = plan.correction.shape
        rule = "a correction has one entry per parameter, or one row per client"
        check(shape in ((p,), (m, p)), f"correction of shape {shape}", rule, f"give {(p,)} or {(m, p)}")


def sample_weight(plan: Plan, client: int, n: int) -> NDArray[np.float32] | None:
    """The plan's weights of a client's n samples, or None where it names none."""
    given = (plan.sample_weight or {}).get(client)
    if given is None:
        return None
    check(len(given) == n, f"{len(given)} sample weights", f"client {client} owns {n} samples", "give one each")
    return np.ascontiguousarray(given, np.float32)


def _correction(plan: Plan, order: Index, start: Stack) -> Stack | None:
    if plan.correction is None:
        return None
    given = np.asarray(plan.correction, start.dtype)
    return given if given.ndim == 1 else given[order]
