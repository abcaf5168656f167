"""From accepted replies to a new model: what the method may know, and what the server computes from uploads."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedcohort.core.rng import generator
from fedcohort.errors import ContractError
from fedcohort.methods._parts.server_validation import mean_loss
from fedcohort.protocols import Aggregated, Aggregation, Method, ServerEvaluator
from fedcohort.rounds.backend import Backend
from fedcohort.rounds.outstanding import Landed, scattered, with_extras
from fedcohort.signals import of_side
from fedcohort.types import Arrays, Index, Mask, Model, Outcome, Plan, Real, Updates

ABANDONED = "round-abandoned"


def aggregate(
    method: Method,
    model: Model,
    landed: Landed,
    plan: Plan,
    measured: frozenset[str],
    backend: Backend,
    seed: int,
    index: int,
    *,
    enough: bool,
) -> tuple[Model, dict[str, float]]:
    """Let the method make a new model; whom it left out is FILTERED. With too few replies the model stays.

    `measured` are the signals that the method asked clients for; they arrive as extras of the updates.
    """
    rows = positions(landed)
    extras = {n: landed.signals[n][rows] for n in measured if n in landed.signals}
    updates = with_extras(landed.updates, extras)
    context = context_of(landed, plan, backend, seed, index)
    if not enough:
        landed.outcome[rows] = Outcome.FILTERED
        landed.reasons.update({int(c): ABANDONED for c in updates.clients})
        method.aggregate(model, updates.rows(rows[:0]), context)
        return model, {"abandoned": 1.0}
    made = _checked(method.aggregate(model, updates, context), type(method).__name__)
    landed.outcome[rows[~made.accepted]] = Outcome.FILTERED
    landed.reasons.update({int(k): v for k, v in made.reasons.items()})
    return made.model, {f"method.{k}": float(v) for k, v in made.info.items()}


def _checked(made: Any, name: str) -> Aggregated:
    """What the method returned, or the reason why it breaks the contract."""
    if not isinstance(made, Aggregated):
        what = "nothing" if made is None else " ".join(f"{type(made).__name__} {made!r}".split())[:80]
        remedy = "write: return Aggregated(model, accepted)"
        raise ContractError(f"{name}.aggregate returned {what}", "it must return an Aggregated", remedy)
    return made


def context_of(landed: Landed, plan: Plan, backend: Backend, seed: int, index: int) -> Aggregation:
    """What a method may know beside the model and the updates."""
    cohort = landed.cohort
    drawn = by_client(cohort.clients, cohort.directives.get("multiplicity"))
    return Aggregation(
        index=index,
        plan=plan,
        population=backend.population,
        samples=backend.samples,
        dispatched=cohort.clients,
        inclusion=by_client(cohort.clients, cohort.inclusion),
        multiplicity={k: int(v) for k, v in drawn.items()},
        server_evaluator=backend.server_evaluator,
        client_evaluator=backend.client_evaluator,
        rng=generator(seed, "method", index),
    )


def server_signals(needs: frozenset[str], landed: Landed, sent: Real, size: int, backend: Backend) -> Arrays:
    """What the server can compute from uploads it has anyway, and blank columns for what nobody reported.

    `sent` is the whole model that the updates were computed on, or one row per update; `size` of it are parameters.
    """
    updates, m, rows, last_layer = landed.updates, landed.cohort.clients.size, positions(landed), backend.last_layer
    base = sent[..., :size]
    computed = _computed(needs - landed.signals.keys(), updates, base, last_layer)
    if "model_gain" in needs:
        computed["model_gain"] = model_gains(updates.delta, sent, backend.server_evaluator, updates.buffers)
    out: Arrays = {n: scattered(c, rows, m) for n, c in computed.items()}
    for name in of_side(needs, "client"):
        if name not in landed.signals and name not in out:
            width = {"insight": width_of(last_layer, base.shape[-1]), "network_insight": base.shape[-1]}.get(name, 0)
            out[name] = scattered(np.empty((0, width) if width else 0), rows[:0], m)
    return out


def positions(landed: Landed) -> Index:
    """The row of each update's client in the cohort."""
    clients = landed.cohort.clients
    order = np.argsort(clients, kind="stable")
    return order[np.searchsorted(clients, landed.updates.clients, sorter=order)]


def by_client(clients: Index, column: Any) -> dict[int, float]:
    """A column over the cohort as {slot: value}; nothing where there is none."""
    if column is None:
        return {}
    return {int(c): float(v) for c, v in zip(clients, np.asarray(column), strict=True)}


def _computed(needs: frozenset[str], updates: Updates, base: Real, last_layer: slice | Mask | None) -> Arrays:
    out: Arrays = {}
    if "delta_norm" in needs:
        with np.errstate(over="ignore", invalid="ignore"):
            out["delta_norm"] = np.sqrt(np.einsum("ij,ij->i", updates.delta, updates.delta, dtype=np.float64))
    if "delta" in needs:
        out["delta"] = updates.delta
    if "weights" in needs:
        out["weights"] = updates.delta + base
    if "last_layer_delta" in needs and last_layer is not None:
        out["last_layer_delta"] = updates.delta[:, last_layer]
    return out


def model_gains(delta: Real, sent: Real, evaluator: ServerEvaluator | None, buffers: Real | None = None) -> Real:
    """By how much each uploaded model alone lowers the loss on the server's validation data; NaN without such data.

    `sent` are the models they began with, see :func:`server_signals`; an uploaded model has its own `buffers`. One
    without a finite loss counts as one that loses all that can be lost.
    """
    if evaluator is None or not evaluator.size("validation") or not len(delta):
        return np.full(len(delta), np.nan)
    size = delta.shape[1]
    starts, which = np.unique(np.atleast_2d(sent), axis=0, return_inverse=True) if sent.ndim > 1 else (sent[None], 0)
    before = np.array([mean_loss(start[:size], evaluator, start[size:]) for start in starts])[which]
    own = [None] * len(delta) if buffers is None else buffers
    models = delta + sent[..., :size]
    after = np.array([mean_loss(row, evaluator, stats) for row, stats in zip(models, own, strict=True)])
    return np.asarray(before - after, np.float64)


def width_of(last_layer: slice | Mask | None, params: int) -> int:
    """How many parameters the last layer has: all of them where there is none."""
    if last_layer is None:
        return params
    return last_layer.stop - last_layer.start if isinstance(last_layer, slice) else int(last_layer.sum())
