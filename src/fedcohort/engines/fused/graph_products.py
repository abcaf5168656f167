"""Steps of a layer graph that multiply by weights: convolutions of any stride and linear layers.

Values lie as [channel][y][x][sample], so that a convolution is a sum of shifted runs. With a stride the columns of
the input are first dealt out to as many planes, after which the taps are shifted runs again. The gradient by the
input is a convolution of the gradient with the weights turned round; the gradient by the weights is made of sums of
products along the runs (`dots.py`).
"""

from __future__ import annotations

import numpy as np

from .backward import total
from .compile import kernel, part
from .graph_norms import line_at
from .graph_rows import (
    BIAS,
    D_AT,
    D_B,
    D_C,
    D_GAT,
    D_GB,
    D_H,
    D_W,
    KEPT,
    PAD,
    PANELS,
    S_AT,
    S_B,
    S_C,
    S_GAT,
    S_GB,
    S_H,
    S_W,
    SCRATCH,
    SIZE_Y,
    STEP_OF,
    STRIDE,
    SUMS,
    WEIGHT,
    WRITES,
    ZERO,
    call_sums,
)
from .graph_tiles import tiled, tiled_backward, tiled_forward
from .kernels import HOT, Floats, Table, fill, parts, turn
from .vectors import LANES, call_panels

_LONG = 1024  # floats of a run over which one tile of weight gradients is summed up


@kernel
def split_width(row: Table) -> int:
    """Columns of one of the planes to which a strided convolution's input is dealt out."""
    return int((row[S_W] + 2 * row[PAD] + row[STRIDE] - 1) // row[STRIDE])


@kernel
def deal_out(row: Table, ws: Floats, s: int) -> None:
    """The input with its border as [channel][y][column % stride][column // stride][sample]."""
    high, wide, pad, stride, k = row[S_H], row[S_W], row[PAD], row[STRIDE], row[SIZE_Y]
    planes, across = min(stride, k), split_width(row)
    line = (wide + 2 * row[S_B]) * s
    plane = (high + 2 * row[S_B]) * line
    for c in range(row[S_C]):
        for y in range(high + 2 * pad):
            if y % stride >= k:
                continue
            source = row[S_AT] + c * plane + (y - pad + row[S_B]) * line + row[S_B] * s
            to = row[KEPT] + (c * (high + 2 * pad) + y) * stride * across * s
            for p in range(planes):
                for j in range(across):
                    x = j * stride + p - pad
                    out = ws[to + (p * across + j) * s : to + (p * across + j + 1) * s]
                    if y < pad or y >= high + pad or x < 0 or x >= wide:
                        for i in range(s):
                            out[i] = np.float32(0.0)
                    else:
                        here = ws[source + x * s : source + (x + 1) * s]
                        for i in range(s):
                            out[i] = here[i]


@kernel
def input_of(row: Table, s: int) -> tuple[int, int, int, int]:
    """Start, floats of a line and of a plane, and of a stride's plane, of what the taps of a convolution read."""
    if row[STRIDE] == 1:
        line = (row[S_W] + 2 * row[S_B]) * s
        start = row[S_AT] + (row[S_B] - row[PAD]) * (line + s)
        return start, line, (row[S_H] + 2 * row[S_B]) * line, 0
    part = split_width(row) * s
    line = row[STRIDE] * part
    return row[KEPT], line, (row[S_H] + 2 * row[PAD]) * line, part


@part(STEP_OF)
def conv_forward_step(
    row: Table, ws: Floats, w: Floats, g: Floats, stats: Floats, s: int, train: int, key: int, first: int
) -> None:
    """Convolution, row by row of the output."""
    if tiled(row, s):
        tiled_forward(row, ws, w, s, first)
        return
    k, ci, co, stride, wide = row[SIZE_Y], row[S_C], row[D_C], row[STRIDE], row[D_W]
    if stride > 1:
        deal_out(row, ws, s)
    start, line, plane, part = input_of(row, s)
    out_line = (wide + 2 * row[D_B]) * s
    out_plane = (row[D_H] + 2 * row[D_B]) * out_line
    block = parts(ci, max(HOT // (k * (k * s + 2 * LANES)), 1))
    bias = w if row[BIAS] >= 0 else ws
    at, further = (row[BIAS], 1) if row[BIAS] >= 0 else (row[ZERO], 0)
    for y in range(row[D_H]):
        out = row[D_AT] + (y + row[D_B]) * out_line + row[D_B] * s
        for c in range(0, ci, block):
            source, weight, few = start + c * plane + y * stride * line, row[WEIGHT] + c * k * k, min(block, ci - c)
            if stride == 1 and k > 1:
                call_panels(
                    row[PANELS], co, ws, out, out_plane, w, weight, ci * k * k, k * k, k, 1,
                    ws, source, plane, line, s, few, k, k, bias, at, further, int(c > 0), wide * s,
                )  # fmt: skip
                continue
            for p in range(min(stride, k)):  # the taps of one plane after the other, channels innermost
                call_panels(
                    row[PANELS], co, ws, out, out_plane, w, weight + p, ci * k * k, stride, k, k * k,
                    ws, source + p * part, s, line, plane, (k - p + stride - 1) // stride, k, few,
                    bias, at, further, int(c > 0 or p > 0), wide * s,
                )  # fmt: skip


@kernel
def by_weights(row: Table, ws: Floats, g: Floats, s: int) -> None:
    """Gradients by weights, added to g."""
    k, ci, co, stride, run = row[SIZE_Y], row[S_C], row[D_C], row[STRIDE], row[D_W] * s
    start, line, plane, part = input_of(row, s)
    up_line = (row[D_W] + 2 * row[D_GB]) * s
    up_plane = (row[D_H] + 2 * row[D_GB]) * up_line
    taps = np.empty(ci * k * k, np.int64)
    for c in range(ci):
        for y in range(k):
            for x in range(k):
                shift = x * s if stride == 1 else x % stride * part + x // stride * s
                taps[(c * k + y) * k + x] = c * plane + y * line + shift
    rows = max(_LONG // run, 1)
    for y in range(0, row[D_H], rows):
        up = row[D_GAT] + (y + row[D_GB]) * up_line + row[D_GB] * s
        few = min(rows, row[D_H] - y)
        call_sums(
            row[SUMS], co, taps.size, g, row[WEIGHT], taps.size, ws, up, up_plane, up_line,
            ws, start + y * stride * line, taps, stride * line, few, run,
        )  # fmt: skip


@kernel
def by_bias(row: Table, ws: Floats, g: Floats, s: int) -> None:
    """Gradients by biases, added to g."""
    for o in range(row[D_C] if row[BIAS] >= 0 else 0):
        for y in range(row[D_H]):
            at = line_at(row[D_GAT], row[D_GB], row[D_H], row[D_W], o, y, s)
            g[row[BIAS] + o] += total(ws[at : at + row[D_W] * s])


@kernel
def by_input(row: Table, ws: Floats, w: Floats, s: int) -> None:
    """Gradient by the input of a convolution of stride 1. Taps that only meet the border are left out."""
    k, ci, co, wide, pad, border = row[SIZE_Y], row[S_C], row[D_C], row[S_W], row[PAD], row[D_GB]
    up_line = (row[D_W] + 2 * border) * s
    up_plane = (row[D_H] + 2 * border) * up_line
    line = (wide + 2 * row[S_GB]) * s
    plane = (row[S_H] + 2 * row[S_GB]) * line
    block = parts(co, max(HOT // (k * (k * s + 2 * LANES)), 1))
    for y in range(row[S_H]):
        out = row[S_GAT] + (y + row[S_GB]) * line + row[S_GB] * s
        tap = max(y + pad - row[D_H] + 1, 0)
        up = row[D_GAT] + (y + pad - tap + border) * up_line + (pad + border) * s
        for c in range(0, co, block):
            call_panels(
                row[PANELS], ci, ws, out, plane, w, row[WEIGHT] + c * ci * k * k + tap * k, k * k, ci * k * k, k, 1,
                ws, up + c * up_plane, up_plane, -up_line, -s, min(block, co - c), min(k, y + pad + 1) - tap, k,
                ws, row[ZERO], 0, int(c > 0 or row[WRITES] == 1), wide * s,
            )  # fmt: skip


@kernel
def by_dealt_input(row: Table, ws: Floats, w: Floats, s: int) -> None:
    """Gradient by the input of a strided convolution: one row of all planes at a time, put back in order at once."""
    k, ci, co, stride, pad, border = row[SIZE_Y], row[S_C], row[D_C], row[STRIDE], row[PAD], row[D_GB]
    across = split_width(row)
    part = across * s
    up_line = (row[D_W] + 2 * border) * s
    up_plane = (row[D_H] + 2 * border) * up_line
    line = (row[S_W] + 2 * row[S_GB]) * s
    plane = (row[S_H] + 2 * row[S_GB]) * line
    for y in range(pad, pad + row[S_H]):
        rows = (k - y % stride + stride - 1) // stride  # taps that meet this row
        for p in range(stride):
            columns = (k - p + stride - 1) // stride
            if rows <= 0 or columns <= 0:
                for c in range(ci):
                    at = row[SCRATCH] + (c * stride + p) * part
                    fill(ws, at, at + part)
                continue
            call_panels(
                row[PANELS], ci, ws, row[SCRATCH] + p * part, stride * part,
                w, row[WEIGHT] + y % stride * k + p, k * k, stride * k, stride, ci * k * k,
                ws, row[D_GAT] + (y // stride + border) * up_line + border * s, -up_line, -s, up_plane,
                rows, columns, co, ws, row[ZERO], 0, 0, part,
            )  # fmt: skip
        for c in range(ci):
            out = row[S_GAT] + c * plane + (y - pad + row[S_GB]) * line + row[S_GB] * s
            for x in range(row[S_W]):
                at = row[SCRATCH] + (c * stride + (x + pad) % stride) * part + (x + pad) // stride * s
                found, here = ws[at : at + s], ws[out + x * s : out + (x + 1) * s]
                if row[WRITES] == 1:
                    for i in range(s):
                        here[i] += found[i]
                else:
                    for i in range(s):
                        here[i] = found[i]


@part(STEP_OF)
def conv_backward_step(
    row: Table, ws: Floats, w: Floats, g: Floats, stats: Floats, s: int, train: int, key: int, first: int
) -> None:
    """All gradients of a convolution."""
    by_bias(row, ws, g, s)
    if tiled(row, s):
        tiled_backward(row, ws, g, s)
        return
    by_weights(row, ws, g, s)
    if row[WRITES] >= 0 and row[STRIDE] == 1:
        by_input(row, ws, w, s)
    elif row[WRITES] >= 0:
        by_dealt_input(row, ws, w, s)


@part(STEP_OF)
def linear_forward_step(
    row: Table, ws: Floats, w: Floats, g: Floats, stats: Floats, s: int, train: int, key: int, first: int
) -> None:
    """Fully connected layer."""
    ci, co = row[S_C], row[D_C]
    block = parts(ci, max(HOT // s, 1))
    bias = w if row[BIAS] >= 0 else ws
    at, further = (row[BIAS], 1) if row[BIAS] >= 0 else (row[ZERO], 0)
    for f in range(0, ci, block):
        call_panels(
            row[PANELS], co, ws, row[D_AT], s, w, row[WEIGHT] + f, ci, 0, 0, 1,
            ws, row[S_AT] + f * s, 0, 0, s, 1, 1, min(block, ci - f), bias, at, further, int(f > 0), s,
        )  # fmt: skip


@part(STEP_OF)
def linear_backward_step(
    row: Table, ws: Floats, w: Floats, g: Floats, stats: Floats, s: int, train: int, key: int, first: int
) -> None:
    """All gradients of a fully connected layer; the input is turned to [sample][feature] for those by the weights."""
    ci, co, up = row[S_C], row[D_C], row[D_GAT]
    for o in range(co if row[BIAS] >= 0 else 0):
        g[row[BIAS] + o] += total(ws[up + o * s : up + (o + 1) * s])
    turn(ws, row[S_AT] + np.arange(ci) * s, ci, 0, s, ws, row[SCRATCH], ci)
    block = max(HOT // s // LANES, 1) * LANES
    for f in range(0, ci, block):
        call_panels(
            row[PANELS], co, g, row[WEIGHT] + f, ci, ws, up, s, 0, 0, 1,
            ws, row[SCRATCH] + f, 0, 0, ci, 1, 1, s, ws, row[ZERO], 0, 1, min(block, ci - f),
        )  # fmt: skip
    if row[WRITES] >= 0:
        call_panels(
            row[PANELS], ci, ws, row[S_GAT], s, w, row[WEIGHT], 1, 0, 0, ci,
            ws, up, 0, 0, s, 1, 1, co, ws, row[ZERO], 0, int(row[WRITES] == 1), s,
        )  # fmt: skip
