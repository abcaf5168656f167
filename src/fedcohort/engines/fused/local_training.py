"""One client, start to end, without the interpreter: local training, evaluation, full-batch gradients."""

from __future__ import annotations

import math

import numpy as np
from numba import types
from numpy.typing import NDArray

from .backward import backward, clear_gradients, order_taps
from .compile import entry, kernel
from .kernels import Bytes, Floats, Table, clear_borders, forward, take
from .loss import by_logits, measure
from .vectors import LANES
from .workspace import ACT, BLOCK, CI

Index = NDArray[np.int64]
Doubles = NDArray[np.float64]

# Types at the entries. What is only read may be read-only.
_F, _D, _I, _B = types.float32[::1], types.float64[::1], types.int64[::1], types.int8[::1]
_XS = types.Array(types.float32, 2, "C", readonly=True)
_FS, _IS = (types.Array(t, 1, "C", readonly=True) for t in (types.float32, types.int64))
_SPACE = (types.int64[:, ::1], _F, _B, _I)

# Entries of the vector of rates.
LR, MOMENTUM, DECAY, PROX, ADAM = range(5)
_BETA1, _BETA2, _EPS = 0.9, 0.999, 1e-8


@kernel
def block_of(count: int) -> int:
    """Samples per block, for `count` samples in equal blocks."""
    parts = (count + BLOCK - 1) // BLOCK
    return (count + parts - 1) // parts


@kernel
def enter(table: Table, ws: Floats, winners: Bytes, seen: Index, w: Floats, x: Floats, rows: Index, count: int) -> int:
    """Forward pass of `count` samples; how many places a block has (small ones are filled up with zeros)."""
    s = max(count, LANES)
    clear_borders(table, ws, seen, s)
    take(table[0], ws, x, rows, s)
    forward(table, ws, winners, w, s)
    return s


@entry(types.void(*_SPACE, _FS, _F, _XS, _IS, _IS, _D, _XS, types.boolean, _FS, _F, _F, _F))
def gradient(
    table: Table, ws: Floats, winners: Bytes, seen: Index, w: Floats, g: Floats, x: Floats, rows: Index,
    label: Index, o: Doubles, frozen: Floats, given: bool, scale: Floats, hard: Floats, loss: Floats, hit: Floats,
) -> None:  # fmt: skip
    """g = sum over samples of scale * d objective / d w; per-sample cross-entropy, objective and hits on the way."""
    last = table[table.shape[0] - 1]
    zero = np.zeros(1, np.float32)
    clear_gradients(table, ws, g)
    size = block_of(rows.size)
    for b in range(0, rows.size, size):
        e = min(b + size, rows.size)
        s = enter(table, ws, winners, seen, w, x, rows[b:e], e - b)
        q = frozen[b:e] if given else frozen
        measure(last, ws, label[b:e], o, q, given, hard[b:e], loss[b:e], hit[b:e], e - b, s)
        by_logits(last, ws, label[b:e], o, q, given, scale[b:e], e - b, s)
        backward(table, ws, winners, w, g, x, rows[b:e], zero, b > 0, s)
    order_taps(table, ws, g)


@entry(types.void(*_SPACE, _FS, _XS, _IS, _IS, _D, _F, _F, _F))
def evaluate(
    table: Table, ws: Floats, winners: Bytes, seen: Index, w: Floats, x: Floats, rows: Index, label: Index,
    o: Doubles, hard: Floats, loss: Floats, hit: Floats,
) -> None:  # fmt: skip
    """Per-sample cross-entropy, objective (pseudo-labels are the model's own) and hits."""
    last = table[table.shape[0] - 1]
    none = np.zeros((0, 0), np.float32)
    size = block_of(max(rows.size, 1))
    for b in range(0, rows.size, size):
        e = min(b + size, rows.size)
        s = enter(table, ws, winners, seen, w, x, rows[b:e], e - b)
        measure(last, ws, label[b:e], o, none, False, hard[b:e], loss[b:e], hit[b:e], e - b, s)


@entry(types.void(*_SPACE, _FS, _XS, _IS, types.float32[:, ::1]))
def infer(
    table: Table, ws: Floats, winners: Bytes, seen: Index, w: Floats, x: Floats, rows: Index, out: Floats
) -> None:
    """Logits (n, classes)."""
    z, classes = table[table.shape[0] - 1, ACT], table[table.shape[0] - 1, CI]
    size = block_of(max(rows.size, 1))
    for b in range(0, rows.size, size):
        e = min(b + size, rows.size)
        s = enter(table, ws, winners, seen, w, x, rows[b:e], e - b)
        for i in range(e - b):
            for k in range(classes):
                out[b + i, k] = ws[z + k * s + i]


@kernel
def move(
    w: Floats, g: Floats, start: Floats, first: Floats, second: Floats, correction: Floats, rate: Doubles, taken: int
) -> None:
    """One step of SGD (momentum where `first` has room) or Adam. `taken` counts from 1."""
    lr, mu = np.float32(rate[LR]), np.float32(rate[PROX])
    decay, momentum = np.float32(rate[DECAY]), np.float32(rate[MOMENTUM])
    if mu != 0.0:
        for i in range(w.size):
            g[i] += mu * (w[i] - start[i])
    if correction.size:
        for i in range(w.size):
            g[i] += correction[i]
    if decay != 0.0:
        for i in range(w.size):
            g[i] += decay * w[i]
    if rate[ADAM] != 0.0:
        b1, b2, eps = np.float32(_BETA1), np.float32(_BETA2), np.float32(_EPS)
        c1, c2 = np.float32(1.0 - _BETA1), np.float32(1.0 - _BETA2)
        step = np.float32(rate[LR] / (1.0 - _BETA1**taken))
        root = np.float32(1.0 / math.sqrt(1.0 - _BETA2**taken))
        for i in range(w.size):
            first[i] = b1 * first[i] + c1 * g[i]
            second[i] = b2 * second[i] + c2 * g[i] * g[i]
            w[i] -= step * (first[i] / (np.float32(math.sqrt(second[i])) * root + eps))
    elif momentum != 0.0:
        for i in range(w.size):
            first[i] = momentum * first[i] + g[i]
            w[i] -= lr * first[i]
    else:
        for i in range(w.size):
            w[i] -= lr * g[i]


@kernel
def change(w: Floats, start: Floats, delta: Floats) -> bool:
    """delta = w - start; whether all of it is finite."""
    odd = np.float32(0.0)
    for i in range(w.size):
        delta[i] = w[i] - start[i]
        odd += delta[i] - delta[i]  # NaN for infinities and NaN, else 0
    return bool(odd == np.float32(0.0))


_SAMPLES = (_XS, _IS, _IS, types.int64[:, ::1], types.intp)


@entry(types.intp(*_SPACE, _FS, _F, *_SAMPLES, _D, _D, _XS, types.boolean, _FS, _FS, _D))
def train(
    table: Table, ws: Floats, winners: Bytes, seen: Index, start: Floats, delta: Floats, x: Floats, rows: Index,
    label: Index, order: Index, batch: int, rate: Doubles, o: Doubles, frozen: Floats, given: bool, weight: Floats,
    correction: Floats, stats: Doubles,
) -> int:  # fmt: skip
    """Local training from `start`; the change goes to `delta`. `order` (epochs, n) holds positions in rows and label.

    `stats` receives sum, sum of squares and number of the first epoch's cross-entropies. Returns the steps taken,
    as its complement (negative) if the loss or the weights stopped being finite.
    """
    n = rows.size
    most = min(batch, n)
    w = np.zeros(start.size + LANES, np.float32)[: start.size]
    w[:] = start
    g = np.empty(w.size + LANES, np.float32)[: w.size]  # tiles write back what lies behind a run
    first = np.zeros(w.size if rate[MOMENTUM] != 0.0 or rate[ADAM] != 0.0 else 0, np.float32)
    second = np.zeros(w.size if rate[ADAM] != 0.0 else 0, np.float32)
    hard, loss, hit = np.empty(most, np.float32), np.empty(most, np.float32), np.empty(most, np.float32)
    scale = np.empty(most, np.float32)
    row, y = np.empty(most, np.int64), np.empty(most, np.int64)
    q = np.empty((most if given else 0, frozen.shape[1]), np.float32)
    taken = 0
    for epoch in range(order.shape[0]):
        for b in range(0, n, batch):
            at = order[epoch, b : min(b + batch, n)]
            count = at.size
            for i in range(count):
                row[i], y[i] = rows[at[i]], label[at[i]]
                scale[i] = (weight[at[i]] if weight.size else np.float32(1.0)) / count
                for j in range(frozen.shape[1] if given else 0):
                    q[i, j] = frozen[at[i], j]
            gradient(
                table, ws, winners, seen, w, g, x, row[:count], y[:count], o, q, given, scale[:count],
                hard[:count], loss[:count], hit[:count],
            )  # fmt: skip
            taken += 1
            total = 0.0
            for i in range(count):
                total += hard[i]
                if epoch == 0:
                    stats[0] += hard[i]
                    stats[1] += np.float64(hard[i]) * hard[i]
                    stats[2] += 1.0
            if not math.isfinite(total):
                return ~taken
            move(w, g, start, first, second, correction, rate, taken)
    return taken if change(w, start, delta) else ~taken
