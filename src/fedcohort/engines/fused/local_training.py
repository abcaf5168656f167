"""One client, start to end, without the interpreter: local training, evaluation, full-batch gradients."""

from __future__ import annotations

import math

import numpy as np
from numba import types
from numpy.typing import NDArray

from .backward import clear_gradients, conv_backward, linear_backward, order_taps
from .blocks import gather_taps, panels, spread_taps
from .compile import Compiled, entry, kernel, part
from .compile import prepare as compile_all
from .kernels import Bytes, Floats, Table, clear_borders, conv_forward, linear_forward, take
from .loss import by_logits, measure
from .moved_images import show
from .signatures import (
    FS,
    GRADIENT_OF,
    IS,
    MOVE_OF,
    SPACE,
    XS,
    YES,
    D,
    F,
    N,
    call_backward,
    call_by_logits,
    call_forward,
    call_gradient,
    call_measure,
    call_move,
    call_take,
)
from .vectors import LANES, SLACK
from .workspace import (
    ACT,
    BACKWARD,
    BLOCK,
    BY_LOGITS,
    CI,
    CONV,
    FORWARD,
    GATHER,
    GRADIENT,
    MEASURE,
    MOVE,
    PANELS,
    SCATTER,
    TAKE,
)

Index = NDArray[np.int64]
Doubles = NDArray[np.float64]

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
    """Forward pass of `count` samples; how many places a block has (small ones are filled up with zeros).

    The logits end as [class][sample] in the last row's input.
    """
    s = max(count, LANES)
    clear_borders(table, ws, seen, s)
    call_take(table[0, TAKE], (table[0], ws, x, rows, s))
    for i in range(table.shape[0] - 1):
        call_forward(table[i, FORWARD], (table[i], table[i + 1], ws, winners, w, s))
    return s


@part(GRADIENT_OF)
def add_gradient(
    table: Table, ws: Floats, winners: Bytes, seen: Index, w: Floats, g: Floats, x: Floats, rows: Index,
    label: Index, o: Doubles, frozen: Floats, given: bool, scale: Floats, hard: Floats, loss: Floats, hit: Floats,
) -> None:  # fmt: skip
    """g = sum over samples of scale * d objective / d w; per-sample cross-entropy, objective and hits on the way."""
    end = table.shape[0] - 2
    last = table[end + 1]
    zero = np.zeros(1, np.float32)
    clear_gradients(table, ws, g)
    size = block_of(rows.size)
    for b in range(0, rows.size, size):
        e = min(b + size, rows.size)
        s = enter(table, ws, winners, seen, w, x, rows[b:e], e - b)
        q = frozen[b:e] if given else frozen
        y = label[b:e]
        call_measure(last[MEASURE], (last, ws, y, o, q, given, hard[b:e], loss[b:e], hit[b:e], e - b, s))
        call_by_logits(last[BY_LOGITS], (last, ws, y, o, q, given, scale[b:e], e - b, s))
        for i in range(end, -1, -1):
            call_backward(
                table[i, BACKWARD],
                (table[i], table[i + 1], i == 0, i == end, ws, winners, w, g, x, rows[b:e], zero, b > 0, s),
            )
    order_taps(table, ws, g)


@kernel
def whole_gradient(
    table: Table, ws: Floats, winners: Bytes, seen: Index, w: Floats, g: Floats, x: Floats, rows: Index,
    label: Index, o: Doubles, frozen: Floats, given: bool, scale: Floats, hard: Floats, loss: Floats, hit: Floats,
) -> None:  # fmt: skip
    """The same, by its address."""
    call_gradient(
        table[0, GRADIENT], (table, ws, winners, seen, w, g, x, rows, label, o, frozen, given, scale, hard, loss, hit)
    )


@entry(GRADIENT_OF)
def gradient(
    table: Table, ws: Floats, winners: Bytes, seen: Index, w: Floats, g: Floats, x: Floats, rows: Index,
    label: Index, o: Doubles, frozen: Floats, given: bool, scale: Floats, hard: Floats, loss: Floats, hit: Floats,
) -> None:  # fmt: skip
    """The same, to be called from Python."""
    whole_gradient(table, ws, winners, seen, w, g, x, rows, label, o, frozen, given, scale, hard, loss, hit)


@entry(types.void(*SPACE, FS, XS, IS, IS, D, F, F, F, types.float32[:, ::1]))
def evaluate(
    table: Table, ws: Floats, winners: Bytes, seen: Index, w: Floats, x: Floats, rows: Index, label: Index,
    o: Doubles, hard: Floats, loss: Floats, hit: Floats, out: Floats,
) -> None:  # fmt: skip
    """Per-sample cross-entropy, objective (pseudo-labels are the model's own) and hits, and logits (n, classes).

    What there is no room for is left out: losses, or logits.
    """
    last = table[table.shape[0] - 1]
    none = np.zeros((0, 0), np.float32)
    size = block_of(max(rows.size, 1))
    for b in range(0, rows.size, size):
        e = min(b + size, rows.size)
        s = enter(table, ws, winners, seen, w, x, rows[b:e], e - b)
        if loss.size:
            call_measure(
                last[MEASURE], (last, ws, label[b:e], o, none, False, hard[b:e], loss[b:e], hit[b:e], e - b, s)
            )
        for i in range(e - b if out.shape[0] else 0):
            for k in range(last[CI]):
                out[b + i, k] = ws[last[ACT] + k * s + i]


@part(MOVE_OF)
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


_EXPONENT = np.int32(0x7F800000)  # all ones in infinities and NaN


@kernel
def change(w: Floats, start: Floats, delta: Floats) -> bool:
    """delta = w - start; whether all of it is finite, by its bits: x - x cancels where sums may be reordered."""
    for i in range(w.size):
        delta[i] = w[i] - start[i]
    odd = 0
    for bits in delta.view(np.int32):
        odd += (bits & _EXPONENT) == _EXPONENT
    return odd == 0


_SAMPLES = (XS, IS, IS, types.int64[:, ::1], N)


@entry(types.intp(*SPACE, FS, F, *_SAMPLES, D, D, XS, YES, FS, FS, D, types.int64[:, :, ::1], N, N))
def train(
    table: Table, ws: Floats, winners: Bytes, seen: Index, start: Floats, delta: Floats, x: Floats, rows: Index,
    label: Index, order: Index, batch: int, rate: Doubles, o: Doubles, frozen: Floats, given: bool, weight: Floats,
    correction: Floats, stats: Doubles, moves: Index, high: int, wide: int,
) -> int:  # fmt: skip
    """Local training from `start`; the change goes to `delta`. `order` (epochs, n) holds positions in rows and label.

    `stats` receives sum, sum of squares and number of the first epoch's cross-entropies; `moves` (epochs, n, 3) says
    how images of this height and width are moved, in the order of the epoch, or is empty. Returns the steps taken,
    as its complement (negative) if the loss or the weights stopped being finite.
    """
    n = rows.size
    most = min(batch, n)
    w = np.zeros(start.size + SLACK, np.float32)[: start.size]
    for i in range(w.size):
        w[i] = start[i]
    g = np.empty(w.size + SLACK, np.float32)[: w.size]  # tiles write back what lies behind a run
    first = np.zeros(w.size if rate[MOMENTUM] != 0.0 or rate[ADAM] != 0.0 else 0, np.float32)
    second = np.zeros(w.size if rate[ADAM] != 0.0 else 0, np.float32)
    hard, loss, hit = np.empty(most, np.float32), np.empty(most, np.float32), np.empty(most, np.float32)
    scale = np.empty(most, np.float32)
    row, y = np.empty(most, np.int64), np.empty(most, np.int64)
    q = np.empty((most if given else 0, frozen.shape[1]), np.float32)
    shown = np.empty((most if moves.size else 0, x.shape[1]), np.float32)
    numbers = np.arange(most)
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
            if moves.size:
                show(x, row[:count], moves[epoch, b : b + count], high, wide, shown)
                whole_gradient(
                    table, ws, winners, seen, w, g, shown, numbers[:count], y[:count], o, q, given, scale[:count],
                    hard[:count], loss[:count], hit[:count],
                )  # fmt: skip
            else:
                whole_gradient(
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
            call_move(table[0, MOVE], (w, g, start, first, second, correction, rate, taken))
    return taken if change(w, start, delta) else ~taken


_ALWAYS = {PANELS: panels, TAKE: take, MEASURE: measure, BY_LOGITS: by_logits, MOVE: move, GRADIENT: add_gradient}
_STAGE = (
    {FORWARD: linear_forward, BACKWARD: linear_backward},
    {FORWARD: conv_forward, BACKWARD: conv_backward, GATHER: gather_taps, SCATTER: spread_taps},
)
_USED = {evaluate: frozenset({PANELS, TAKE, FORWARD, MEASURE})}  # training and gradients use all


def prepare(table: Table, use: Compiled) -> None:
    """Compile or load what `use` needs for these stages, and write the addresses into the table."""
    wanted = _parts(table, use)
    later = [one for other in (train, evaluate) for one in (*_parts(table, other).values(), other)]
    compile_all([*dict.fromkeys(wanted.values()), use], later)
    for (i, c), one in wanted.items():
        table[i, c] = one.address


def _parts(table: Table, use: Compiled) -> dict[tuple[int, int], Compiled]:
    """What `use` calls, and where in the table its address belongs."""
    wanted: dict[tuple[int, int], Compiled] = {}
    for i in range(len(table)):
        found = _ALWAYS | (_STAGE[table[i, CONV]] if i + 1 < len(table) else {})
        columns = _USED.get(use, found.keys()) - ({SCATTER} if i == 0 else set())
        wanted |= {(i, c): one for c, one in found.items() if c in columns}
    return wanted
