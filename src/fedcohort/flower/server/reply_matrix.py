"""Replies as one matrix of updates and columns of signals, as the round engine takes them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fedcohort.flower.server.reply_reader import ValidReply
from fedcohort.rounds.backend import Dispatch, no_updates
from fedcohort.types import Array, Arrays, Updates


def matrix(replies: list[tuple[ValidReply, Dispatch]]) -> tuple[Updates, Arrays]:
    """Replies as rows; a client that does not say how many steps it took is assumed to have done as it was told."""
    if not replies:
        return no_updates(), {}
    names = sorted({n for _, work in replies for n in work.plan.measure})
    found = [r for r, _ in replies]
    updates = Updates(
        clients=np.array([r.slot for r in found], np.int64),
        delta=np.stack([r.delta for r in found]),
        weight=np.array([r.weight for r in found], np.float64),
        steps=np.array([r.steps or _steps(r, work) for r, work in replies], np.int64),
        buffers=np.stack([r.model.buffers for r in found]),
        counters=np.stack([r.model.counters for r in found]),
    )
    return updates, {n: _stacked([r.signals.get(n) for r in found]) for n in names}


def _stacked(values: list[Any]) -> Array:
    """One row each; NaN for those that were not asked for it."""
    like = np.asarray(next(v for v in values if v is not None))
    return np.stack([np.full_like(like, np.nan) if v is None else np.asarray(v) for v in values])


def _steps(reply: ValidReply, work: Dispatch) -> int:
    row = int(np.flatnonzero(work.cohort.clients == reply.slot)[0])
    epochs = int(work.plan.epochs_of(work.cohort.clients.size)[row])
    weight = reply.weight if math.isfinite(reply.weight) else 0.0
    return max(epochs * -(-int(min(weight, 1e12)) // work.plan.batch_size), 1)
