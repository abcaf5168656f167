"""Layers: the forward pass of one block of samples. Samples are innermost everywhere.

With S samples a row of an activation is one run of (x, sample) floats, and the tap kx of a convolution is the same
run S * kx floats further on. So a convolution is a sum of shifted runs, whatever S is, and needs no gather, no
padding of the batch and no remainder but one vector per row.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .compile import kernel, part
from .samples import pool, turn8
from .signatures import FORWARD_OF, TAKE_OF
from .vectors import LANES, call_panels
from .workspace import (
    ACT,
    BIAS,
    CI,
    CO,
    CONV,
    HI,
    KERNEL,
    OH,
    OW,
    PAD,
    PANELS,
    POOL,
    RELU,
    ROWS,
    TURNED,
    WEIGHT,
    WI,
    WINNER,
)

Floats = NDArray[np.float32]
Bytes = NDArray[np.int8]
Index = NDArray[np.int64]
Table = Index

HOT = 6144  # floats of input that one reduction block may touch: 24 of the 32 KiB of a small first-level cache

_SPAN = 64  # columns of a transposition that stay in the first-level cache while all rows pass


@kernel
def parts(total: int, most: int) -> int:
    """Size of equal parts of `total` that hold at most `most` each."""
    count = (total + most - 1) // max(most, 1)
    return (total + count - 1) // count


@kernel
def fill(a: Floats, start: int, stop: int) -> None:
    """Zeros from start to stop."""
    part = a[start:stop]
    for j in range(part.size):
        part[j] = np.float32(0.0)


@kernel
def padded(length: int) -> int:
    """Room for a run, rounded up to whole vectors."""
    return (length + LANES - 1) // LANES * LANES


@part(FORWARD_OF)
def conv_forward(row: Table, after: Table, ws: Floats, winners: Bytes, w: Floats, s: int) -> None:
    """Convolution, max-pool and ReLU of one stage, from its input to the input of the stage behind it."""
    k, ci, co, size, ow = row[KERNEL], row[CI], row[CO], row[POOL], row[OW]
    line = (row[WI] + 2 * row[PAD]) * s
    plane = (row[HI] + 2 * row[PAD]) * line
    run = ow * s
    lp = padded(run)
    block = parts(ci, max(HOT // (k * (k * s + 2 * LANES)), 1))
    border = after[PAD]
    out_line = (ow // size + 2 * border) * s
    out_plane = (row[OH] // size + 2 * border) * out_line
    for py in range(row[OH] // size):
        for dy in range(size):
            for c in range(0, ci, block):
                call_panels(
                    row[PANELS],
                    co, ws, row[ROWS] + dy * lp, size * lp,
                    w, row[WEIGHT] + c * k * k, ci * k * k, k * k, k, 1,
                    ws, row[ACT] + c * plane + (py * size + dy) * line, plane, line, s,
                    min(block, ci - c), k, k, w, row[BIAS], 1, int(c > 0), run,
                )  # fmt: skip
        for o in range(co):
            at = row[WINNER] + (o * (row[OH] // size) + py) * (ow // size) * s
            out = after[ACT] + o * out_plane + (py + border) * out_line + border * s
            for px in range(ow // size):
                pool(
                    ws, row[ROWS] + o * size * lp + px * size * s, lp, size, s, row[RELU] == 1,
                    ws, out + px * s, winners, at + px * s,
                )  # fmt: skip


@part(FORWARD_OF)
def linear_forward(row: Table, after: Table, ws: Floats, winners: Bytes, w: Floats, s: int) -> None:
    """Fully connected layer and ReLU."""
    ci, co = row[CI], row[CO]
    block = parts(ci, max(HOT // s, 1))
    for f in range(0, ci, block):
        call_panels(
            row[PANELS],
            co, ws, after[ACT], s, w, row[WEIGHT] + f, ci, 0, 0, 1,
            ws, row[ACT] + f * s, 0, 0, s, 1, 1, min(block, ci - f), w, row[BIAS], 1, int(f > 0), s,
        )  # fmt: skip
    if row[RELU]:
        out = ws[after[ACT] : after[ACT] + co * s]
        for j in range(out.size):
            out[j] = np.float32(0.0) if out[j] <= np.float32(0.0) else out[j]


@kernel
def turn(a: Floats, offsets: Index, rows: int, f: int, columns: int, b: Floats, bo: int, br: int) -> None:
    """B[j][i] = A[offsets[i] + f + j] for i < rows, j < columns: transpose in tiles of 8 x 8, the last overlapping."""
    if rows < 8 or columns < 8:
        for i in range(rows):
            for j in range(columns):
                b[bo + j * br + i] = a[offsets[i] + f + j]
        return
    for start in range(0, columns, _SPAN):
        for i in range(0, rows + 7 - (rows + 7) % 8, 8):
            u = min(i, rows - 8)
            for j in range(start, min(start + _SPAN, columns), 8):
                v = min(j, columns - 8)
                turn8(a, offsets, u, f + v, b, bo + v * br + u, br)


@part(TAKE_OF)
def take(row: Table, ws: Floats, x: Floats, at: Index, s: int) -> None:
    """Bring the samples `at` of x (n, features) into the first stage's input; further places are zero."""
    wide, high, pad, count = row[WI], row[HI], row[PAD], at.size
    features = row[CI] * high * wide
    flat = x.reshape(-1)
    offsets = at * features
    if count < s:
        fill(ws, row[ACT], row[ACT] + row[CI] * (high + 2 * pad) * (wide + 2 * pad) * s)
    if row[CONV] == 0:
        fill(ws, row[TURNED] + count * features, row[TURNED] + s * features)
        for i in range(count):
            for f in range(features):
                ws[row[TURNED] + i * features + f] = flat[offsets[i] + f]
    if pad == 0:
        turn(flat, offsets, count, 0, features, ws, row[ACT], s)
        return
    for c in range(row[CI]):
        for y in range(high):
            start = row[ACT] + ((c * (high + 2 * pad) + y + pad) * (wide + 2 * pad) + pad) * s
            turn(flat, offsets, count, (c * high + y) * wide, wide, ws, start, s)


@kernel
def clear_borders(table: Table, ws: Floats, seen: NDArray[np.int64], s: int) -> None:
    """Zero the activations that carry a border, when the number of samples changed since the last block."""
    if seen[0] == s:
        return
    seen[0] = s
    for i in range(table.shape[0] - 1):
        pad = table[i, PAD]
        if pad:
            size = table[i, CI] * (table[i, HI] + 2 * pad) * (table[i, WI] + 2 * pad) * s
            fill(ws, table[i, ACT], table[i, ACT] + size)
