"""What all aggregation methods share: guards, order, buffers, and weighted sums in double precision.

A method overrides `prepare` (its client half) and `combine` (its server half). Around `combine`, :class:`Base`
sees to it that

* rows come in ascending client order, so that arrival order cannot change a bit;
* rows with a non-finite update or weight are left out (accepted = False);
* with no row left, model and server state stay exactly as they are;
* buffers and counters are merged by policy and never touched by server mathematics.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedcohort.errors import StateMismatch, check
from fedcohort.protocols import Aggregated, Aggregation
from fedcohort.types import Arrays, Index, Mask, Model, Plan, Real, Updates

Double = NDArray[np.float64]
BUFFER_POLICIES = ("average", "server_keep")


@dataclass(frozen=True, slots=True)
class Step:
    """What `combine` decides: the change of the parameters and which rows went into it."""

    change: Double  # (p,) added to the parameters
    kept: Mask  # one entry per row that `combine` was given
    info: Mapping[str, float] = field(default_factory=dict)


class Base:
    """A method without server state. Subclasses set `name` and override `combine`, and `prepare` where needed."""

    name: ClassVar[str] = ""
    exempt: Mapping[str, str] = MappingProxyType({})  # clause of fedcohort.testing.MethodContract -> why it cannot hold
    asynchronous: bool = True  # whether an update may be older than the server's state

    def __init__(self, *, buffers: str = "average") -> None:
        check(
            buffers in BUFFER_POLICIES,
            f"buffers = {buffers!r}",
            "this is no buffer policy",
            f"use one of {', '.join(BUFFER_POLICIES)}",
        )
        self.buffers = buffers

    def prepare(self, plan: Plan, model: Model, clients: Index) -> Plan:
        """Plain local training unless a method says otherwise."""
        del model, clients
        return plan

    def aggregate(self, model: Model, updates: Updates, context: Aggregation) -> Aggregated:
        """Guard, combine, merge buffers."""
        accepted = np.zeros(len(updates), np.bool_)
        order = np.argsort(updates.clients, kind="stable")
        usable = order[usable_rows(updates)[order]]
        if usable.size == 0:
            return Aggregated(model, accepted)
        rows = updates.rows(usable)
        step = self.combine(model, rows, context)
        accepted[usable] = step.kept
        if not step.kept.any():
            return Aggregated(model, accepted, dict(step.info))
        merged = self.merge(model, rows.rows(step.kept))
        params = (model.params.astype(np.float64) + step.change).astype(np.float32)
        return Aggregated(Model(params, *merged), accepted, dict(step.info))

    def combine(self, model: Model, updates: Updates, context: Aggregation) -> Step:
        """The server half on at least one finite row, in ascending client order."""
        raise NotImplementedError

    def merge(self, model: Model, updates: Updates) -> tuple[Real, NDArray[np.int64]]:
        """New buffers and counters from the rows that were kept, by policy."""
        return merge_buffers(model, updates, self.buffers)

    def state_dict(self) -> Arrays:
        """Server state as arrays; none here."""
        return {}

    def load_state_dict(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Inverse of :meth:`state_dict`."""
        if arrays:
            raise StateMismatch(
                f"state with keys {sorted(arrays)}",
                f"{self.name} keeps no state",
                "load it into the method that wrote it",
            )


def usable_rows(updates: Updates) -> Mask:
    """Rows that a server can compute with: finite update and buffers, finite non-negative weight."""
    weight = np.asarray(updates.weight, np.float64)
    finite: Mask = np.isfinite(updates.delta).all(axis=1) & np.isfinite(weight) & (weight >= 0)
    if updates.buffers is not None:
        finite &= np.isfinite(updates.buffers).all(axis=1)
    return finite


def multiplicity(updates: Updates, context: Aggregation) -> Double:
    """How often each client was drawn; 1 unless the selector sampled with replacement."""
    times = context.multiplicity
    if not times:
        return np.ones(len(updates))
    return np.array([times.get(int(c), 1) for c in updates.clients], np.float64)


def normalised(weight: Real) -> Double:
    """Weights that sum to one; equal ones where all are zero."""
    w = np.asarray(weight, np.float64)
    total = float(w.sum())
    return w / total if total > 0 else np.full(w.size, 1.0 / max(w.size, 1))


def data_weights(updates: Updates, context: Aggregation) -> Double:
    """n_k times multiplicity, normalised over those that returned."""
    return normalised(np.asarray(updates.weight, np.float64) * multiplicity(updates, context))


def weighted_sum(weight: Double, matrix: Real) -> Double:
    """sum_k weight_k * matrix_k in double precision, row by row in order."""
    total = np.zeros(matrix.shape[1], np.float64)
    for w, row in zip(weight, matrix, strict=True):
        total += w * row.astype(np.float64)
    return total


def merge_buffers(model: Model, updates: Updates, policy: str) -> tuple[Real, NDArray[np.int64]]:
    """Buffers averaged with weights n_k or kept as the server has them; counters by maximum, never averaged."""
    buffers, counters = model.buffers, model.counters
    if updates.counters is not None and updates.counters.size:
        counters = np.maximum(model.counters, updates.counters.max(axis=0))
    if policy != "server_keep" and updates.buffers is not None and updates.buffers.size:
        buffers = weighted_sum(normalised(updates.weight), updates.buffers).astype(np.float32)
    return buffers, counters
