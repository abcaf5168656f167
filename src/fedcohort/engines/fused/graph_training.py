"""A batch through a layer graph: losses, logits, or gradients, block by block."""

from __future__ import annotations

import numpy as np
from numba import types
from numpy.typing import NDArray

from .compile import entry, kernel
from .graph_rows import BACKWARD, FORWARD, call_step
from .kernels import Floats, Table, fill
from .local_training import change
from .signatures import FS, IS, MOVE_OF, XS, YES, D, F, I, N, call_by_logits, call_measure, call_move, call_take
from .workspace import ACT, CI

Index = NDArray[np.int64]
Doubles = NDArray[np.float64]

LOGITS, LOSSES, GRADIENT = range(3)  # what is wanted
_TABLE = types.int64[:, ::1]


@kernel
def clear_edges(edged: Table, ws: Floats, seen: Index, s: int) -> None:
    """Zero what has a border, when the number of samples changed since the last block."""
    if seen[0] != s:
        seen[0] = s
        for i in range(edged.shape[0]):
            fill(ws, edged[i, 0], edged[i, 0] + edged[i, 1] * s)


@entry(
    types.void(
        _TABLE, I, I, I, _TABLE, F, I, FS, F, F, XS, IS, IS, D, XS, YES, FS, F, F, F, types.float32[:, ::1], *[N] * 4
    )
)
def run_graph(
    steps: Table, parts: Index, first: Index, last: Index, edged: Table, ws: Floats, seen: Index, w: Floats, g: Floats,
    stats: Floats, x: Floats, rows: Index, label: Index, o: Doubles, frozen: Floats, given: bool, scale: Floats,
    hard: Floats, loss: Floats, hit: Floats, out: Floats, block: int, want: int, train: int, key: int,
) -> None:  # fmt: skip
    """Samples in equal blocks of at most `block`. What is wanted is one of LOGITS, LOSSES (and hits) and GRADIENT.

    `train` is 1 in a step of training: statistics of the batch, which the running ones in `stats` follow, and dropout.
    """
    if want == GRADIENT:
        g[:] = np.float32(0.0)
    count = max((rows.size + block - 1) // block, 1)
    size = (rows.size + count - 1) // count
    for b in range(0, rows.size, max(size, 1)):
        e = min(b + size, rows.size)
        s = e - b
        clear_edges(edged, ws, seen, s)
        call_take(parts[0], (first, ws, x, rows[b:e], s))
        for i in range(steps.shape[0]):
            call_step(steps[i, FORWARD], (steps[i], ws, w, g, stats, s, train, key, b))
        if want == LOGITS:
            for i in range(s):
                for k in range(last[CI]):
                    out[b + i, k] = ws[last[ACT] + k * s + i]
            continue
        q = frozen[b:e] if given else frozen
        call_measure(parts[1], (last, ws, label[b:e], o, q, given, hard[b:e], loss[b:e], hit[b:e], s, s))
        if want == GRADIENT:
            call_by_logits(parts[2], (last, ws, label[b:e], o, q, given, scale[b:e], s, s))
            for i in range(steps.shape[0] - 1, -1, -1):
                call_step(steps[i, BACKWARD], (steps[i], ws, w, g, stats, s, train, key, b))


@entry(types.void(N, *MOVE_OF.args))
def take_step(
    address: int,
    w: Floats,
    g: Floats,
    start: Floats,
    first: Floats,
    second: Floats,
    correction: Floats,
    rate: Doubles,
    taken: int,
) -> None:
    """One step of the optimiser."""
    call_move(address, (w, g, start, first, second, correction, rate, taken))


@entry(types.boolean(F, FS, F))
def take_change(w: Floats, start: Floats, delta: Floats) -> bool:
    """delta = w - start; whether all of it is finite."""
    return bool(change(w, start, delta))
