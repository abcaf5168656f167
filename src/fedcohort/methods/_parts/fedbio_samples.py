"""FedBiO, variant A: clean the training samples. OUR CONSTRUCTION.

Client k weighs sample j by s_j = 2 sigma(lambda_j), 1 at the start. With per-sample losses l_j and p_k = n_k / n,

    g(w) = sum_k p_k (1 / n_k) sum_j s_j l_j(w) + (damping / 2) |w|^2                                    (1)
    u    = H^-1 grad f(w),  H = hessian of g:   u <- u - rho ( sum_k p_k H_k u + damping u - grad f )    (2)
    df/dlambda_j = -(p_k / n_k) 2 sigma'(lambda_j) <grad l_j(w), u>                                      (3)
    lambda_j <- lambda_j + eta 2 sigma'(lambda_j) <grad l_j(w), u>                                       (4)

u is one vector for all, averaged in every step of (2). Averaging hypergradients that each client computed from its
own u_k is wrong (the inverse of a mean is not the mean of the inverses); a test shows it.

No second derivatives and no per-sample gradients are needed:

    H_k u  =~ ( grad g_k(w + e u) - grad g_k(w - e u) ) / 2e
    <grad l_j, u>  =~ ( l_j(w + e u) - l_j(w - e u) ) / 2e

What it needs. The client half evaluates losses and gradients at three points, so the traffic is two parameter vectors
each way. Engines have no such call; the method asks `Aggregation.client_evaluator`, which a simulation can offer.
lambda belongs to the client: here the method object holds it on behalf of the client, never mixes two clients' rows,
and the server step (2) uses none of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcohort.core.table import TableError
from fedcohort.errors import BadParameter
from fedcohort.methods._parts.server_validation import gradient_of, validation_evaluator
from fedcohort.methods.base import Double
from fedcohort.protocols import Aggregation, ClientEvaluator
from fedcohort.types import Arrays, Index, Plan, Real

PROBE = 1e-2  # length of the difference e |u|
KEYS = ("lambda", "slots", "start", "u")


@dataclass(frozen=True, slots=True)
class CleaningSettings:
    """The numbers of eq. 1 to 4."""

    outer_lr: float  # [eta]
    linear_lr: float  # [rho]
    linear_steps: int  # [I]
    damping: float
    clean_validation: bool


class SampleCleaning:
    """lambda of every sample, u of the server."""

    def __init__(self, settings: CleaningSettings) -> None:
        self.settings = settings
        self.weights: dict[int, NDArray[np.float32]] = {}  # slot -> lambda
        self.u = np.empty(0)

    def prepare(self, plan: Plan, clients: Index) -> Plan:
        """s_j for the clients that have been through (4) before; one for all others."""
        known = {int(c): sample_weight(self.weights[int(c)]) for c in clients if int(c) in self.weights}
        return replace(plan, sample_weight={**(plan.sample_weight or {}), **known}) if known else plan

    def learn(
        self, point: Double, clients: Index, share: Double, context: Aggregation, buffers: Real | None = None
    ) -> dict[str, float]:
        """Eq. 2, then eq. 4 for every client of the cohort, at the new model and its buffers."""
        local = client_losses(context.client_evaluator, buffers)
        for client in clients.tolist():
            size = local.size(client, "train")
            if client not in self.weights or self.weights[client].size != size:
                self.weights[client] = np.zeros(size, np.float32)
        s = self.settings
        gradient = outer_gradient(point, clients, share, context, clean=s.clean_validation, buffers=buffers)
        start = self.u if self.u.size == point.size else np.zeros(point.size)
        weights = {c: sample_weight(self.weights[c]) for c in clients.tolist()}
        u = solve(local, point, clients, share, weights, gradient, s, start)
        if not np.isfinite(u).all():
            self.u = np.empty(0)
            return {"fedbio_u_reset": 1.0}
        self.u = u
        moved = 0.0
        for client in clients.tolist():
            slope = along(local, point, client, u)
            step = s.outer_lr * sample_slope(self.weights[client]) * slope
            self.weights[client] += np.where(np.isfinite(step), step, 0.0).astype(np.float32)
            moved += float(np.abs(step).mean()) if step.size else 0.0
        return {"fedbio_u_norm": float(np.linalg.norm(u)), "fedbio_moved": moved / clients.size}

    def to_arrays(self) -> Arrays:
        """lambda as one ragged column, and u."""
        slots = np.array(sorted(self.weights), np.int64)
        rows = [self.weights[int(slot)] for slot in slots]
        start = np.concatenate([[0], np.cumsum([row.size for row in rows])]).astype(np.int64)
        flat = np.concatenate(rows) if rows else np.empty(0, np.float32)
        return {"slots": slots, "start": start, "lambda": flat.astype(np.float32), "u": self.u.copy()}

    def load_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Inverse of :meth:`to_arrays`."""
        if tuple(sorted(arrays)) != KEYS or arrays["start"].size != arrays["slots"].size + 1:
            raise TableError(f"keys {sorted(arrays)} do not fit; variant='samples' keeps {', '.join(KEYS)}")
        parts = np.split(arrays["lambda"].astype(np.float32), arrays["start"][1:-1])
        self.weights = {int(c): part.copy() for c, part in zip(arrays["slots"], parts, strict=False)}
        self.u = arrays["u"].astype(np.float64)


def sample_weight(x: Real) -> NDArray[np.float32]:
    """s = 2 sigma(lambda)."""
    return np.asarray(1.0 + np.tanh(0.5 * x), np.float32)


def sample_slope(x: Real) -> Double:
    """ds / dlambda = 2 sigma (1 - sigma)."""
    half = np.tanh(0.5 * x.astype(np.float64))
    out: Double = 0.5 * (1.0 - half * half)
    return out


def solve(
    local: ClientEvaluator,
    point: Double,
    clients: Index,
    share: Double,
    weights: Mapping[int, Real],
    gradient: Double,
    settings: CleaningSettings,
    start: Double,
) -> Double:
    """Eq. 2: the one u of all, averaged in every step."""
    u = start.copy()
    for _ in range(settings.linear_steps):
        curved = settings.damping * u
        length = float(np.linalg.norm(u))
        if length > 0:
            e = PROBE / length
            for client, p in zip(clients.tolist(), share, strict=True):
                up = local.gradient(point + e * u, client, "train", weights[client])
                down = local.gradient(point - e * u, client, "train", weights[client])
                curved = curved + p * (np.asarray(up, np.float64) - down) / (2 * e)
        u = u - settings.linear_lr * (curved - gradient)
    return u


def along(local: ClientEvaluator, point: Double, client: int, u: Double) -> Double:
    """<grad l_j(w), u> for every training sample of a client."""
    length = float(np.linalg.norm(u))
    if length == 0:
        return np.zeros(local.size(client, "train"))
    e = PROBE / length
    up = np.asarray(local.losses(point + e * u, client, "train"), np.float64)
    out: Double = (up - local.losses(point - e * u, client, "train")) / (2 * e)
    return out


def outer_gradient(
    point: Double,
    clients: Index,
    share: Double,
    context: Aggregation,
    *,
    clean: bool,
    buffers: Real | None = None,
) -> Double:
    """grad f: on the server's validation split, or averaged over the clients' own validation parts."""
    if clean:
        evaluator = validation_evaluator(context.server_evaluator, "fedbio(clean_validation=True)")
        labels = evaluator.labels("validation")
        target = np.eye(evaluator.classes, dtype=np.float32)[labels]
        rows, w = np.arange(labels.size), point.astype(np.float32)
        gradient = gradient_of(evaluator, w, "validation", rows, target, buffers)
        return gradient.astype(np.float64)
    local = client_losses(context.client_evaluator, buffers)
    total, mass = np.zeros(point.size), 0.0
    for client, p in zip(clients.tolist(), share, strict=True):
        if local.size(client, "validation") > 0:
            total += p * local.gradient(point, client, "validation")
            mass += float(p)
    return total / mass if mass > 0 else total


def client_losses(local: ClientEvaluator | None, buffers: Real | None = None) -> ClientEvaluator:
    """The clients' evaluator, at these buffers if there are any, or the error that says what to do without it."""
    if local is None:
        raise BadParameter(
            "fedbio without access to losses at the clients",
            "variant='samples' and clean_validation=False evaluate the clients' own samples",
            "run it in a simulation whose task has a client_evaluator, or use variant='clients', clean_validation=True",
        )
    return local if buffers is None or not buffers.size else _AtBuffers(local, buffers)


class _AtBuffers:
    """The clients' evaluator with the same statistics in every call."""

    def __init__(self, local: ClientEvaluator, buffers: Real) -> None:
        self._local, self._buffers = local, buffers

    def size(self, client: int, part: str) -> int:
        return self._local.size(client, part)

    def losses(self, params: Real, client: int, part: str, buffers: Real | None = None) -> Real:
        return self._local.losses(params, client, part, self._buffers if buffers is None else buffers)

    def gradient(
        self, params: Real, client: int, part: str, weight: Real | None = None, buffers: Real | None = None
    ) -> Real:
        return self._local.gradient(params, client, part, weight, self._buffers if buffers is None else buffers)
