"""Steps of a layer graph without weights: ReLU, pooling, dropout, additions and copies.

ReLU, dropout and additions work in place: on the value in the forward pass, on its gradient in the backward pass.
"""

from __future__ import annotations

import numpy as np

from .compile import kernel, part
from .graph_norms import line_at
from .graph_rows import (
    CONSTANTS,
    D_AT,
    D_B,
    D_C,
    D_GAT,
    D_GB,
    D_H,
    D_W,
    KEPT,
    ORDER,
    PAD,
    RELU,
    S_AT,
    S_B,
    S_C,
    S_GAT,
    S_GB,
    S_H,
    S_W,
    SIZE_X,
    SIZE_Y,
    STEP_OF,
    STRIDE,
    T_AT,
    T_B,
    T_GAT,
    T_GB,
    T_WRITES,
    THRESHOLD,
    WRITES,
)
from .kernels import Floats, Table

_ZERO, _ONE, _TWO, _THREE = (np.float32(i) for i in range(4))
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX1, _MIX2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31, _S40 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(40)


@kernel
def mask_lines(row: Table, ws: Floats, s: int) -> None:
    """No gradient where the value is not positive."""
    for c in range(row[D_C]):
        for y in range(row[D_H]):
            at = line_at(row[D_AT], row[D_B], row[D_H], row[D_W], c, y, s)
            up = line_at(row[D_GAT], row[D_GB], row[D_H], row[D_W], c, y, s)
            out, d = ws[at : at + row[D_W] * s], ws[up : up + row[D_W] * s]
            for j in range(out.size):
                d[j] *= _ZERO if out[j] <= _ZERO else _ONE  # a select would become a masked store: ten times slower


@part(STEP_OF)
def relu_forward_step(
    row: Table, ws: Floats, w: Floats, g: Floats, stats: Floats, s: int, train: int, key: int, first: int
) -> None:
    """max(x, 0) in place."""
    for c in range(row[D_C]):
        for y in range(row[D_H]):
            at = line_at(row[D_AT], row[D_B], row[D_H], row[D_W], c, y, s)
            out = ws[at : at + row[D_W] * s]
            for j in range(out.size):
                z = out[j]  # read before the choice: a read within it is a branch, many times slower
                out[j] = _ZERO if z <= _ZERO else z


@part(STEP_OF)
def relu_backward_step(
    row: Table, ws: Floats, w: Floats, g: Floats, stats: Floats, s: int, train: int, key: int, first: int
) -> None:
    """No gradient where the value is not positive."""
    if row[WRITES] >= 0:
        mask_lines(row, ws, s)


@kernel
def move_lines(
    ws: Floats, channels: int, high: int, wide: int, s: int, at: int, border: int, to: int, edge: int, add: bool
) -> None:
    """Copy or add all rows of one value to another of the same shape."""
    for c in range(channels):
        for y in range(high):
            a = line_at(at, border, high, wide, c, y, s)
            b = line_at(to, edge, high, wide, c, y, s)
            source, out = ws[a : a + wide * s], ws[b : b + wide * s]
            if add:
                for j in range(out.size):
                    out[j] += source[j]
            else:
                for j in range(out.size):
                    out[j] = source[j]


@part(STEP_OF)
def add_forward_step(
    row: Table, ws: Floats, w: Floats, g: Floats, stats: Floats, s: int, train: int, key: int, first: int
) -> None:
    """The second value onto the first, then ReLU."""
    high, wide, relu = row[D_H], row[D_W], row[RELU] == 1
    for c in range(row[D_C]):
        for y in range(high):
            a = line_at(row[T_AT], row[T_B], high, wide, c, y, s)
            b = line_at(row[D_AT], row[D_B], high, wide, c, y, s)
            other, out = ws[a : a + wide * s], ws[b : b + wide * s]
            if relu:
                for j in range(out.size):
                    z = out[j] + other[j]
                    out[j] = _ZERO if z <= _ZERO else z
            else:
                for j in range(out.size):
                    out[j] += other[j]


@part(STEP_OF)
def add_backward_step(
    row: Table, ws: Floats, w: Floats, g: Floats, stats: Floats, s: int, train: int, key: int, first: int
) -> None:
    """The gradient of the sum is that of the second value too."""
    if row[RELU]:
        mask_lines(row, ws, s)
    if row[T_WRITES] >= 0:
        add = row[T_WRITES] == 1
        move_lines(ws, row[D_C], row[D_H], row[D_W], s, row[D_GAT], row[D_GB], row[T_GAT], row[T_GB], add)


@part(STEP_OF)
def copy_forward_step(
    row: Table, ws: Floats, w: Floats, g: Floats, stats: Floats, s: int, train: int, key: int, first: int
) -> None:
    """The same value in a buffer of its own."""
    move_lines(ws, row[S_C], row[S_H], row[S_W], s, row[S_AT], row[S_B], row[D_AT], row[D_B], False)


@part(STEP_OF)
def copy_backward_step(
    row: Table, ws: Floats, w: Floats, g: Floats, stats: Floats, s: int, train: int, key: int, first: int
) -> None:
    """And the same gradient."""
    if row[WRITES] >= 0:
        add = row[WRITES] == 1
        move_lines(ws, row[S_C], row[S_H], row[S_W], s, row[D_GAT], row[D_GB], row[S_GAT], row[S_GB], add)


@kernel
def clear_gradient(row: Table, ws: Floats, s: int) -> None:
    """Zero the gradient by the input, unless others have added to it already."""
    if row[WRITES] == 1:
        return
    for c in range(row[S_C]):
        for y in range(row[S_H]):
            at = line_at(row[S_GAT], row[S_GB], row[S_H], row[S_W], c, y, s)
            out = ws[at : at + row[S_W] * s]
            for j in range(out.size):
                out[j] = _ZERO


@kernel
def by_fours(row: Table) -> bool:
    """Whether windows are 2 x 2 and lie side by side, as most do: these are read and written at once."""
    return bool(row[SIZE_Y] == 2 and row[SIZE_X] == 2 and row[STRIDE] == 2 and row[PAD] == 0)


@kernel
def higher(z: np.float32, number: np.float32, best: np.float32, where: np.float32) -> tuple[np.float32, np.float32]:
    """The maximum and its place; NaN wins, as in PyTorch."""
    won = (z > best) | (z != z)
    return (z if won else best), (number if won else where)


@kernel
def max_of_fours(row: Table, ws: Floats, s: int) -> None:
    """Maximum over windows of 2 x 2."""
    wide = row[D_W]
    for c in range(row[D_C]):
        for y in range(row[D_H]):
            at = line_at(row[S_AT], row[S_B], row[S_H], row[S_W], c, 2 * y, s)
            below = line_at(row[S_AT], row[S_B], row[S_H], row[S_W], c, 2 * y + 1, s)
            to = line_at(row[D_AT], row[D_B], row[D_H], wide, c, y, s)
            kept = row[KEPT] + (c * row[D_H] + y) * wide * s
            for x in range(wide):
                p, q = ws[at + 2 * x * s : at + 2 * (x + 1) * s], ws[below + 2 * x * s : below + 2 * (x + 1) * s]
                out, place = ws[to + x * s : to + (x + 1) * s], ws[kept + x * s : kept + (x + 1) * s]
                for j in range(s):
                    best, where = higher(p[j], _ZERO, np.float32(-np.inf), -_ONE)
                    best, where = higher(p[s + j], _ONE, best, where)
                    best, where = higher(q[j], _TWO, best, where)
                    out[j], place[j] = higher(q[s + j], _THREE, best, where)


@kernel
def to_fours(row: Table, ws: Floats, s: int) -> None:
    """Gradient of `max_of_fours`, added to what is there."""
    wide = row[D_W]
    for c in range(row[D_C]):
        for y in range(row[D_H]):
            at = line_at(row[S_GAT], row[S_GB], row[S_H], row[S_W], c, 2 * y, s)
            below = line_at(row[S_GAT], row[S_GB], row[S_H], row[S_W], c, 2 * y + 1, s)
            up = line_at(row[D_GAT], row[D_GB], row[D_H], wide, c, y, s)
            kept = row[KEPT] + (c * row[D_H] + y) * wide * s
            for x in range(wide):
                p, q = ws[at + 2 * x * s : at + 2 * (x + 1) * s], ws[below + 2 * x * s : below + 2 * (x + 1) * s]
                d, place = ws[up + x * s : up + (x + 1) * s], ws[kept + x * s : kept + (x + 1) * s]
                for j in range(s):
                    z, where = d[j], place[j]
                    p[j] += z if where == _ZERO else _ZERO
                    p[s + j] += z if where == _ONE else _ZERO
                    q[j] += z if where == _TWO else _ZERO
                    q[s + j] += z if where == _THREE else _ZERO


@part(STEP_OF)
def max_forward_step(
    row: Table, ws: Floats, w: Floats, g: Floats, stats: Floats, s: int, train: int, key: int, first: int
) -> None:
    """Maximum over windows; the place of the first maximum is kept."""
    if by_fours(row):
        max_of_fours(row, ws, s)
        return
    high, wide = row[S_H], row[S_W]
    for c in range(row[D_C]):
        for y in range(row[D_H]):
            for x in range(row[D_W]):
                to = line_at(row[D_AT], row[D_B], row[D_H], row[D_W], c, y, s) + x * s
                at = row[KEPT] + ((c * row[D_H] + y) * row[D_W] + x) * s
                out, place = ws[to : to + s], ws[at : at + s]
                for j in range(s):
                    out[j], place[j] = -np.inf, np.float32(-1.0)
                for dy in range(row[SIZE_Y]):
                    v = y * row[STRIDE] + dy - row[PAD]
                    if v < 0 or v >= high:
                        continue
                    line = line_at(row[S_AT], row[S_B], high, wide, c, v, s)
                    for dx in range(row[SIZE_X]):
                        u = x * row[STRIDE] + dx - row[PAD]
                        if u < 0 or u >= wide:
                            continue
                        here, number = ws[line + u * s : line + (u + 1) * s], np.float32(dy * row[SIZE_X] + dx)
                        for j in range(s):
                            out[j], place[j] = higher(here[j], number, out[j], place[j])


@part(STEP_OF)
def max_backward_step(
    row: Table, ws: Floats, w: Floats, g: Floats, stats: Floats, s: int, train: int, key: int, first: int
) -> None:
    """The gradient goes to the place that won."""
    if row[WRITES] < 0:
        return
    clear_gradient(row, ws, s)
    if by_fours(row):
        to_fours(row, ws, s)
        return
    high, wide = row[S_H], row[S_W]
    for c in range(row[D_C]):
        for y in range(row[D_H]):
            for x in range(row[D_W]):
                up = line_at(row[D_GAT], row[D_GB], row[D_H], row[D_W], c, y, s) + x * s
                at = row[KEPT] + ((c * row[D_H] + y) * row[D_W] + x) * s
                d, place = ws[up : up + s], ws[at : at + s]
                for dy in range(row[SIZE_Y]):
                    v = y * row[STRIDE] + dy - row[PAD]
                    if v < 0 or v >= high:
                        continue
                    line = line_at(row[S_GAT], row[S_GB], high, wide, c, v, s)
                    for dx in range(row[SIZE_X]):
                        u = x * row[STRIDE] + dx - row[PAD]
                        if u < 0 or u >= wide:
                            continue
                        out, number = ws[line + u * s : line + (u + 1) * s], np.float32(dy * row[SIZE_X] + dx)
                        for j in range(s):
                            out[j] += d[j] if place[j] == number else _ZERO


@part(STEP_OF)
def mean_forward_step(
    row: Table, ws: Floats, w: Floats, g: Floats, stats: Floats, s: int, train: int, key: int, first: int
) -> None:
    """Mean over windows, which have no border."""
    share = np.float32(1.0 / (row[SIZE_Y] * row[SIZE_X]))
    for c in range(row[D_C]):
        for y in range(row[D_H]):
            for x in range(row[D_W]):
                to = line_at(row[D_AT], row[D_B], row[D_H], row[D_W], c, y, s) + x * s
                out = ws[to : to + s]
                out[:] = _ZERO
                for dy in range(row[SIZE_Y]):
                    line = line_at(row[S_AT], row[S_B], row[S_H], row[S_W], c, y * row[STRIDE] + dy, s)
                    for dx in range(row[SIZE_X]):
                        at = line + (x * row[STRIDE] + dx) * s
                        here = ws[at : at + s]
                        for j in range(s):
                            out[j] += here[j]
                for j in range(s):
                    out[j] *= share


@part(STEP_OF)
def mean_backward_step(
    row: Table, ws: Floats, w: Floats, g: Floats, stats: Floats, s: int, train: int, key: int, first: int
) -> None:
    """Every place of a window has its share of the gradient."""
    if row[WRITES] < 0:
        return
    clear_gradient(row, ws, s)
    share = np.float32(1.0 / (row[SIZE_Y] * row[SIZE_X]))
    for c in range(row[D_C]):
        for y in range(row[D_H]):
            for x in range(row[D_W]):
                up = line_at(row[D_GAT], row[D_GB], row[D_H], row[D_W], c, y, s) + x * s
                d = ws[up : up + s]
                for dy in range(row[SIZE_Y]):
                    line = line_at(row[S_GAT], row[S_GB], row[S_H], row[S_W], c, y * row[STRIDE] + dy, s)
                    for dx in range(row[SIZE_X]):
                        at = line + (x * row[STRIDE] + dx) * s
                        out = ws[at : at + s]
                        for j in range(s):
                            out[j] += share * d[j]


@kernel
def mix(z: np.uint64) -> np.uint64:
    """The finaliser of SplitMix64; see `dropout_masks`, which defines the masks."""
    z = (z ^ (z >> _S30)) * _MIX1
    z = (z ^ (z >> _S27)) * _MIX2
    return z ^ (z >> _S31)


@kernel
def drop(row: Table, ws: Floats, s: int, key: int, first: int, base: int, border: int) -> None:
    """Zero, or times 1 / (1 - p), in place; `first` is the number of the block's first sample in its batch."""
    high, wide = row[D_H], row[D_W]
    start = mix(np.uint64(key) + np.uint64(row[ORDER] + 1) * _GOLDEN)
    scale, least = ws[row[CONSTANTS]], np.uint64(row[THRESHOLD])
    features = row[D_C] * high * wide
    for c in range(row[D_C]):
        for y in range(high):
            line = line_at(base, border, high, wide, c, y, s)
            for x in range(wide):
                out = ws[line + x * s : line + (x + 1) * s]
                place = (c * high + y) * wide + x + 1
                for j in range(s):
                    bits = mix(start + np.uint64(features * (first + j) + place) * _GOLDEN)
                    out[j] = out[j] * scale if (bits >> _S40) >= least else _ZERO


@part(STEP_OF)
def dropout_forward_step(
    row: Table, ws: Floats, w: Floats, g: Floats, stats: Floats, s: int, train: int, key: int, first: int
) -> None:
    """Dropout of the value, in training."""
    if train:
        drop(row, ws, s, key, first, row[D_AT], row[D_B])


@part(STEP_OF)
def dropout_backward_step(
    row: Table, ws: Floats, w: Floats, g: Floats, stats: Floats, s: int, train: int, key: int, first: int
) -> None:
    """The same of the gradient."""
    if train and row[WRITES] >= 0:
        drop(row, ws, s, key, first, row[D_GAT], row[D_GB])
