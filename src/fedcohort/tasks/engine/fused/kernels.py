"""Layers: forward and backward passes of one block of samples. Samples are innermost everywhere.

With S samples a row of an activation is one run of (x, sample) floats, and the tap kx of a convolution is the same
run S * kx floats further on. So a convolution is a sum of shifted runs, whatever S is, and needs no gather, no
padding of the batch and no remainder but one vector per row.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .compile import kernel
from .layout import (
    ACT,
    BIAS,
    CI,
    CO,
    CONV,
    DCONV,
    DOTS,
    GRAD,
    HI,
    KERNEL,
    LANED,
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
from .samples import lane_sum, pool, turn8, unpool
from .vectors import (
    LANES,
    call_dots,
    call_panels,
)

Floats = NDArray[np.float32]
Bytes = NDArray[np.int8]
Index = NDArray[np.int64]
Table = Index

_HOT = 6144  # floats of input that one reduction block may touch: 24 of the 32 KiB of a small first-level cache

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
def total(a: Floats) -> np.float32:
    """Sum, in as many lanes as the machine has."""
    out = np.float32(0.0)
    for j in range(a.size):
        out += a[j]
    return out


@kernel
def total_won(a: Floats, winners: Bytes) -> np.float32:
    """Sum of what some position of a pool's window receives, which is all but what the ReLU cut."""
    out = np.float32(0.0)
    for j in range(a.size):
        out += a[j] if winners[j] >= 0 else np.float32(0.0)
    return out


@kernel
def padded(length: int) -> int:
    """Room for a run, rounded up to whole vectors."""
    return (length + LANES - 1) // LANES * LANES


@kernel
def pitch(columns: int, s: int) -> int:
    """From one gradient row to the next: a column of zeros, the row, a column of zeros."""
    distance: int = padded(s) + padded((columns + 1) * s)
    return distance


@kernel
def shifts(channels: int, k: int, plane: int, line: int, s: int) -> Index:
    """Where the input of each tap (channel, ky, kx) starts, seen from that of the first."""
    out = np.empty(channels * k * k, np.int64)
    for t in range(out.size):
        out[t] = t // (k * k) * plane + t // k % k * line + t % k * s
    return out


@kernel
def rows_at_once(left: int) -> int:
    """How many of `left` gradient rows to take next: fours and threes, a two or a one only where nothing else is."""
    return 3 if left == 3 or left == 5 or left == 6 or left == 9 else min(left, 4)


@kernel
def conv_forward(row: Table, after: Table, ws: Floats, winners: Bytes, w: Floats, s: int) -> None:
    """Convolution, max-pool and ReLU of one stage, from its input to the input of the stage behind it."""
    k, ci, co, size, ow = row[KERNEL], row[CI], row[CO], row[POOL], row[OW]
    line = (row[WI] + 2 * row[PAD]) * s
    plane = (row[HI] + 2 * row[PAD]) * line
    run = ow * s
    lp = padded(run)
    block = parts(ci, max(_HOT // (k * (k * s + 2 * LANES)), 1))
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


@kernel
def conv_weights(row: Table, after: Table, first: bool, ws: Floats, winners: Bytes, g: Floats, s: int) -> None:
    """Spread the gradient over the pool's winners, row by row; add up weight (per lane) and bias gradients.

    The rows stay for :func:`conv_input`, except in the first stage, which re-uses the room of one pool row.
    """
    k, ci, co, size, ow = row[KERNEL], row[CI], row[CO], row[POOL], row[OW]
    line = (row[WI] + 2 * row[PAD]) * s
    plane = (row[HI] + 2 * row[PAD]) * line
    run = ow * s
    lp, edge = pitch(ow, s), padded(s)
    pw, ph = ow // size, row[OH] // size
    shift = shifts(ci, k, plane, line, s)
    for o in range(co):
        up, won = after[GRAD] + o * ph * pw * s, row[WINNER] + o * ph * pw * s
        g[row[BIAS] + o] += total_won(ws[up : up + ph * pw * s], winners[won : won + ph * pw * s])
    for py in range(ph):
        base = row[DCONV] + edge + (0 if first else py * size * co * lp)
        for o in range(co):
            at = (o * ph + py) * pw * s
            for px in range(pw):
                unpool(
                    ws, base + o * lp + px * size * s, co * lp, size, s,
                    ws, after[GRAD] + at + px * s, winners, row[WINNER] + at + px * s,
                )  # fmt: skip
            for dy in range(size):
                start = base + (dy * co + o) * lp
                fill(ws, start - edge, start)
                fill(ws, start + run, start + lp - edge)
        o = 0
        while o < co:
            rows = rows_at_once(co - o)
            call_dots(
                row[DOTS],
                rows, shift.size, ws, row[LANED] + o * shift.size * LANES, shift.size * LANES,
                ws, base + o * lp, lp, co * lp, ws, row[ACT] + py * size * line, line, shift,
                size, padded(run) // LANES,
            )  # fmt: skip
            o += rows


@kernel
def conv_input(row: Table, ws: Floats, w: Floats, zero: Floats, s: int) -> None:
    """Gradient by the input: a convolution of the gradient rows with flipped taps.

    Taps that would read outside the rows are left out, instead of reading a border of zeros: columns with the same
    valid taps form one run. Only two neighbours that would each be alone go together, and read one column of zeros.
    """
    k, ci, co, ow, oh, wide, pad = row[KERNEL], row[CI], row[CO], row[OW], row[OH], row[WI], row[PAD]
    lp = pitch(ow, s)
    block = parts(co, max(_HOT // (k * (k * s + 2 * LANES)), 1))
    for y in range(row[HI]):
        ky = max(0, y + pad - oh + 1)
        ny = min(k - 1, y + pad) - ky + 1
        for o in range(0, co, block):
            x = 0
            while x < wide:
                end = same_taps(x, wide, ow, pad, k)
                if end == x + 1 and end < wide and same_taps(end, wide, ow, pad, k) == end + 1:
                    end += 1
                kx = max(0, x + pad - ow + 1)
                nx = min(k - 1, end - 1 + pad) - kx + 1
                call_panels(
                    row[PANELS],
                    ci, ws, row[GRAD] + (y * wide + x) * s, row[HI] * wide * s,
                    w, row[WEIGHT] + o * ci * k * k + ky * k + kx, k * k, ci * k * k, k, 1,
                    ws, row[DCONV] + padded(s) + ((y + pad - ky) * co + o) * lp + (x + pad - kx) * s, lp, -co * lp, -s,
                    min(block, co - o), max(ny, 0), max(nx, 0), zero, 0, 0, int(o > 0), (end - x) * s,
                )  # fmt: skip
                x = end


@kernel
def same_taps(x: int, wide: int, ow: int, pad: int, k: int) -> int:
    """The column behind the last one that meets the same taps as column x."""
    low, high = max(0, x + pad - ow + 1), min(k - 1, x + pad)
    end = x + 1
    while end < wide and max(0, end + pad - ow + 1) == low and min(k - 1, end + pad) == high:
        end += 1
    return end


@kernel
def linear_forward(row: Table, after: Table, ws: Floats, w: Floats, s: int) -> None:
    """Fully connected layer and ReLU."""
    ci, co = row[CI], row[CO]
    block = parts(ci, max(_HOT // s, 1))
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
def linear_backward(
    row: Table, after: Table, first: bool, ws: Floats, w: Floats, g: Floats, zero: Floats, add: bool, s: int
) -> None:
    """Gradients of a fully connected layer; the ReLU's mask is where the output is not positive."""
    ci, co, up = row[CI], row[CO], after[GRAD]
    if row[RELU]:
        down, out = ws[up : up + co * s], ws[after[ACT] : after[ACT] + co * s]
        for j in range(out.size):
            down[j] = np.float32(0.0) if out[j] <= np.float32(0.0) else down[j]
    for o in range(co):
        g[row[BIAS] + o] += total(ws[up + o * s : up + (o + 1) * s])
    if not first:
        turn(ws, row[ACT] + np.arange(ci) * s, ci, 0, s, ws, row[TURNED], ci)
    block = max(_HOT // s // LANES, 1) * LANES
    for f in range(0, ci, block):
        call_panels(
            row[PANELS],
            co, g, row[WEIGHT] + f, ci, ws, up, s, 0, 0, 1,
            ws, row[TURNED] + f, 0, 0, ci, 1, 1, s, zero, 0, 0, int(add), min(block, ci - f),
        )  # fmt: skip
    if first:
        return
    block = parts(co, max(_HOT // s, 1))
    for o in range(0, co, block):
        call_panels(
            row[PANELS],
            ci, ws, row[GRAD], s, w, row[WEIGHT] + o * ci, 1, 0, 0, ci,
            ws, up + o * s, 0, 0, s, 1, 1, min(block, co - o), zero, 0, 0, int(o > 0), s,
        )  # fmt: skip


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


@kernel
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


@kernel
def forward(table: Table, ws: Floats, winners: Bytes, w: Floats, s: int) -> None:
    """All stages; the logits end as [class][sample] in the last row's input."""
    for i in range(table.shape[0] - 1):
        if table[i, CONV]:
            conv_forward(table[i], table[i + 1], ws, winners, w, s)
        else:
            linear_forward(table[i], table[i + 1], ws, w, s)


@kernel
def backward(table: Table, ws: Floats, winners: Bytes, w: Floats, g: Floats, zero: Floats, add: bool, s: int) -> None:
    """From the gradient by the logits to g, which is added to if `add`; lanes of convolutions are not yet summed."""
    for i in range(table.shape[0] - 2, -1, -1):
        if table[i, CONV]:
            conv_weights(table[i], table[i + 1], i == 0, ws, winners, g, s)
            if i > 0:
                conv_input(table[i], ws, w, zero, s)
        else:
            linear_backward(table[i], table[i + 1], i == 0, ws, w, g, zero, add, s)


@kernel
def clear_gradients(table: Table, ws: Floats, g: Floats) -> None:
    """Zero the biases of g and the lanes; linear weights are overwritten by the first block."""
    for i in range(table.shape[0] - 1):
        fill(g, table[i, BIAS], table[i, BIAS] + table[i, CO])
        if table[i, CONV]:
            size = table[i, CO] * table[i, CI] * table[i, KERNEL] ** 2 * LANES
            fill(ws, table[i, LANED], table[i, LANED] + size)


@kernel
def sum_lanes(table: Table, ws: Floats, g: Floats) -> None:
    """Convolution gradients: the sum of their lanes."""
    for i in range(table.shape[0] - 1):
        if table[i, CONV]:
            for j in range(table[i, CO] * table[i, CI] * table[i, KERNEL] ** 2):
                g[table[i, WEIGHT] + j] = lane_sum(ws, table[i, LANED] + j * LANES)
