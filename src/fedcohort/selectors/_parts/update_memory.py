"""The newest updates of the clients that replied last: what selectors by similarity remember (clustered, DivFL)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from fedcohort.core.constraints import Choice
from fedcohort.core.table import Table, ragged
from fedcohort.types import Index, RoundResult

Double = NDArray[np.float64]
UpdateSignal = Annotated[str, Choice("last_layer_delta", "delta")]


@dataclass
class UpdateMemory(Table):
    """A row per remembered client, oldest first."""

    who: Index = ragged(np.int64)
    row: NDArray[np.float32] = ragged(np.float32, 2)  # its update as last uploaded


def remember(state: UpdateMemory, result: RoundResult, name: str, memory: int) -> None:
    """Take in the finite updates of a round; forget the oldest beyond `memory` (and all, if the width has changed)."""
    if not result.replied.any():
        return
    update = np.asarray(result.signals[name], np.float32)
    good = np.flatnonzero(result.replied & np.isfinite(update).all(axis=1))
    if good.size == 0:
        return
    old = np.flatnonzero(~np.isin(state.who, result.clients[good]))
    if state.row.shape[1] != update.shape[1]:
        old = old[:0]
    kept = state.row[old] if old.size else np.empty((0, update.shape[1]), np.float32)
    state.who = np.concatenate([state.who[old], result.clients[good]])[-memory:]
    state.row = np.concatenate([kept, update[good]])[-memory:]


def squared_distances(x: Double, y: Double) -> Double:
    """|x_i - y_j|^2; what is zero up to rounding is zero."""
    a, b = (x * x).sum(axis=1), (y * y).sum(axis=1)
    d: Double = a[:, None] + b[None, :] - 2.0 * (x @ y.T)
    scale = max(float(a.max(initial=0.0)), float(b.max(initial=0.0)))
    d[d < 1e-12 * scale] = 0.0
    return d
