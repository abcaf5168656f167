"""What every engine reports in the same form: client-side signals, failures and their reasons."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

import numpy as np

from fedcohort.engines.interface import ClientData, Engine, LossStats, signals_from_stats
from fedcohort.engines.losses import CROSS_ENTROPY, robust_of
from fedcohort.errors import UnknownName
from fedcohort.protocols import Trained
from fedcohort.types import Array, Arrays, Index, Mask, Model, Part, Plan, Real, Updates

INSIGHT_LR = 0.1  # FedACS: one plain full-batch step with a fixed rate
_WHOLE = frozenset({"grad_norm", "network_insight", "full_gradient"})  # from the gradient of all parameters
_GRADIENT = _WHOLE | {"insight"}


class Measuring(Engine, Protocol):
    """An engine that can also evaluate one model per client."""

    def losses_each(self, params: Real, clients: Index, part: str, buffers: Real | None = None) -> LossStats:
        """Row i of params (and buffers) at client i, cross-entropy."""
        ...


def part_of(data: ClientData, part: str) -> Part:
    """The part of this name."""
    if part not in ("train", "validation"):
        raise UnknownName.among("part", part, ("train", "validation"))
    return data.train if part == "train" else data.validation


def collect(
    engine: Measuring,
    data: ClientData,
    model: Model,
    plan: Plan,
    updates: Updates,
    first: LossStats,
    broken: Mask,
    why: Mapping[int, str] | None = None,
) -> Trained:
    """Add the signals of `plan.measure`, the extras and the failures to trained updates.

    `first` are the loss statistics of the first local epoch; `broken` marks clients whose training became
    non-finite, `why` those that could not be trained at all, and says why. Signals of failed clients are NaN.
    """
    empty = data.train.sizes[updates.clients] == 0
    lost = np.isin(updates.clients, list(why or ()))
    failed = broken | empty | lost
    reasons = {int(k): "training became non-finite" for k in updates.clients[broken]}
    reasons |= {int(k): "owns no samples" for k in updates.clients[empty]}
    reasons |= why or {}
    signals, extras = _signals(engine, model, plan, updates.rows(~lost) if lost.any() else updates)
    if lost.any():  # whoever could not be trained could not be measured either
        signals, extras = _spread(signals, ~lost), _spread(extras, ~lost)
    signals |= {name: value for name, value in signals_from_stats(first).items() if name in plan.measure}
    for name, value in signals.items():
        signals[name] = np.array(value, np.float64 if value.ndim == 1 else np.float32)
        signals[name][failed] = np.nan
    return Trained(replace(updates, extras={**updates.extras, **extras}), signals, failed, reasons)


def _spread(columns: Arrays, there: Mask) -> Arrays:
    """Columns of the rows that are there, as columns of all rows; NaN for the others."""
    out: Arrays = {}
    for name, value in columns.items():
        out[name] = np.full((there.size, *value.shape[1:]), np.nan, value.dtype)
        out[name][there] = value
    return out


def _signals(engine: Measuring, model: Model, plan: Plan, updates: Updates) -> tuple[Arrays, Arrays]:
    want, clients = plan.measure, updates.clients
    out: dict[str, Array] = {}
    extras: dict[str, Array] = {}
    if "loss_before" in want:
        out["loss_before"] = engine.losses(model, clients, "train", CROSS_ENTROPY).loss
    if "loss_after" in want:
        out["loss_after"] = engine.losses_each(model.params + updates.delta, clients, "train", updates.buffers).loss
    if "val_loss" in want:
        out["val_loss"] = engine.losses(model, clients, "validation", CROSS_ENTROPY).loss
    if "robust_loss" in want:
        out["robust_loss"] = engine.losses(model, clients, "train", robust_of(plan.reported or plan.objective)).loss
    if want & _GRADIENT:
        gradient = engine.gradients(model, clients, last_layer=not want & _WHOLE)
        last = gradient[:, engine.last_layer] if want & _WHOLE else gradient
        out["insight"] = -INSIGHT_LR * last
        if "network_insight" in want:
            out["network_insight"] = -INSIGHT_LR * gradient
        out["grad_norm"] = np.sqrt(np.square(gradient, dtype=np.float64).sum(axis=1))
        if "full_gradient" in want:
            plain = plan.objective == CROSS_ENTROPY
            extras["full_gradient"] = gradient if plain else engine.gradients(model, clients, objective=plan.objective)
    return {name: value for name, value in out.items() if name in want}, extras
