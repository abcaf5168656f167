"""What a cohort uploads: the plan of some of its rows, and updates of which tensors are left out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedcohort.types import Index, Plan, Updates


def drop_tensors(
    updates: Updates, ratio: NDArray[np.float64], layout: tuple[slice, ...], rng: np.random.Generator
) -> Updates:
    """Each tensor of each update is left out with its client's probability.

    What is sent is scaled by (all weight) / (weight of those that sent this tensor), so that a weighted mean over
    all rows is the weighted mean over those that sent it.
    """
    delta = updates.delta.copy()
    weight = np.asarray(updates.weight, np.float64)
    for part in layout:
        sent = rng.random(len(updates)) >= ratio
        total = float(weight[sent].sum())
        delta[~sent, part] = 0.0
        if total > 0:
            delta[np.flatnonzero(sent)[:, None], np.arange(part.start, part.stop)[None, :]] *= np.float32(
                weight.sum() / total
            )
    return replace(updates, delta=delta)


def plan_rows(plan: Plan, at: Index, m: int) -> Plan:
    """The plan of some rows of the cohort."""
    changes: dict[str, object] = {}
    if np.ndim(plan.epochs):
        changes["epochs"] = np.asarray(plan.epochs)[at]
    if np.ndim(plan.lr):
        changes["lr"] = np.asarray(plan.lr)[at]
    if plan.correction is not None and plan.correction.ndim == 2 and plan.correction.shape[0] == m:
        changes["correction"] = plan.correction[at]
    return replace(plan, **changes) if changes else plan  # type: ignore[arg-type]
