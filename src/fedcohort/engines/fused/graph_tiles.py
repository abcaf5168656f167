"""Convolutions of stride 1 by tiles along x, with fewer multiplications (`tiles.py`).

Behind the transformation a row of a channel is, at each of the 8 points, one number for every tile and sample, and a
convolution is a sum of products over channels and ky alone. As tiles do not overlap there, rows follow each other
without a border, and several of them are one run. The equations are those of `tiles.py`.
"""

from __future__ import annotations

import numpy as np

from .compile import kernel
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
    SUMS,
    TILED,
    WEIGHT,
    WRITES,
    ZERO,
    call_sums,
)
from .kernels import HOT, Floats, Table, fill, parts
from .tiles import (
    TILE,
    at_points3,
    at_points5,
    collected3,
    collected5,
    filtered3,
    filtered5,
    from_points3,
    from_points5,
    powers3,
    powers5,
    unfiltered3,
    unfiltered5,
)
from .vectors import LANES, call_panels

ROWS = 4  # of 16 samples, that make one run of the forward pass
_LEAST = {3: (8, 8), 5: (2, 5)}  # by taps: channels of the input and width of the output from which on tiles pay
_LONG = 1024  # floats of a run over which one tile of weight gradients is summed up


def pays(k: int, channels: int, wide: int) -> bool:
    """Whether tiles are worth their transformations."""
    return k in _LEAST and channels >= _LEAST[k][0] and wide >= _LEAST[k][1]


def room(k: int, channels: tuple[int, int], high: tuple[int, int], wide: int, pad: int) -> tuple[int, int, int]:
    """Floats that are kept for the backward step, at all and for each sample, and of scratch for each sample."""
    (ci, co), (above, below), count, span = channels, high, -(-wide // TILE), k + TILE - 1
    forward = span * co * min(below, ROWS) * count
    backward = count * TILE + k + span * count * (ci + co * below)
    fixed = 2 * span * co * ci * k + span * LANES
    return fixed, span * ci * (above + 2 * pad) * count, 2 * span + max(forward, backward)


@kernel
def span_of(row: Table) -> int:
    """Inputs of a tile, and points."""
    return int(row[SIZE_Y] + TILE - 1)


@kernel
def tiled(row: Table, s: int) -> bool:
    """Whether a block goes by tiles: vectors of samples should be at least half full."""
    return bool(row[TILED] == 1 and 2 * s >= LANES)


@kernel
def across(row: Table) -> int:
    """Tiles of a row."""
    return int((row[D_W] + TILE - 1) // TILE)


@kernel
def transformed(row: Table, s: int) -> tuple[int, int, int]:
    """Where the transformed input lies, and floats from channel to channel and from point to point."""
    plane = (row[S_H] + 2 * row[PAD]) * across(row) * s
    start = row[KEPT] + 2 * span_of(row) * row[D_C] * row[S_C] * row[SIZE_Y]
    return start, plane, row[S_C] * plane + LANES


@kernel
def transform_weights(row: Table, ws: Floats, w: Floats) -> None:
    """G w as [point][output][input][ky]."""
    k, count = row[SIZE_Y], row[D_C] * row[S_C] * row[SIZE_Y]
    turned = row[KEPT] + span_of(row) * count
    for j in range(count):
        for x in range(k):
            ws[turned + x * count + j] = w[row[WEIGHT] + j * k + x]
    if k == 3:
        filtered3(ws, turned, count, ws, row[KEPT], count, count)
    else:
        filtered5(ws, turned, count, ws, row[KEPT], count, count)


@kernel
def put_aside(row: Table, ws: Floats, source: int, there: int, whole: int) -> int:
    """A place with as many floats as are there, and zeros behind them."""
    for j in range(there):
        ws[row[SCRATCH] + j] = ws[source + j]
    fill(ws, row[SCRATCH] + there, row[SCRATCH] + whole)
    return int(row[SCRATCH])


@kernel
def transform_input(row: Table, ws: Floats, s: int) -> None:
    """B^T d as [point][input][y][tile][sample], with rows of border. Behind the last column come zeros."""
    pad, count, span = row[PAD], across(row), span_of(row)
    start, plane, point = transformed(row, s)
    wide = row[S_W] + 2 * pad
    for c in range(row[S_C]):
        for y in range(row[S_H] + 2 * pad):
            at = line_at(row[S_AT], row[S_B], row[S_H], row[S_W], c, y - pad, s) - pad * s
            to = start + c * plane + y * count * s
            for t in range(count):
                source = at + t * TILE * s
                if t * TILE + span > wide:
                    source = put_aside(row, ws, source, (wide - t * TILE) * s, span * s)
                if row[SIZE_Y] == 3:
                    at_points3(ws, source, s, ws, to + t * s, point, s)
                else:
                    at_points5(ws, source, s, ws, to + t * s, point, s)


@kernel
def collect(row: Table, ws: Floats, at: int, point: int, to: int, s: int) -> None:
    """A^T z: the outputs of a row."""
    wide = row[D_W]
    for t in range(across(row)):
        whole = (t + 1) * TILE <= wide
        out = to + t * TILE * s if whole else row[SCRATCH]
        if row[SIZE_Y] == 3:
            collected3(ws, at + t * s, point, ws, out, s, s)
        else:
            collected5(ws, at + t * s, point, ws, out, s, s)
        if not whole:
            for j in range((wide - t * TILE) * s):
                ws[to + t * TILE * s + j] = ws[out + j]


@kernel
def tiled_forward(row: Table, ws: Floats, w: Floats, s: int, first: int) -> None:
    """Eq. 1. The weights are transformed with the first block of a batch. A bias is added at point 1, whose powers
    are all 1."""
    k, span, ci, co, high = row[SIZE_Y], span_of(row), row[S_C], row[D_C], row[D_H]
    if first == 0:
        transform_weights(row, ws, w)
    transform_input(row, ws, s)
    start, plane, point = transformed(row, s)
    run, size, made = across(row) * s, co * ci * k, row[SCRATCH] + span * s
    rows = max(min(16 * ROWS // s, high), 1)
    block = parts(ci, max(HOT // ((rows + k - 1) * run), 1))
    for y in range(0, high, rows):
        few = min(rows, high - y)
        apart = co * few * run + LANES
        for p in range(span):
            biased = p == 1 and row[BIAS] >= 0
            bias = w if biased else ws
            at, further = (row[BIAS], 1) if biased else (row[ZERO], 0)
            for c in range(0, ci, block):
                call_panels(
                    row[PANELS], co, ws, made + p * apart, few * run,
                    ws, row[KEPT] + p * size + c * k, ci * k, k, 0, 1,
                    ws, start + p * point + c * plane + y * run, plane, 0, run,
                    min(block, ci - c), 1, k, bias, at, further, int(c > 0), few * run,
                )  # fmt: skip
        for o in range(co):
            for i in range(few):
                to = line_at(row[D_AT], row[D_B], high, row[D_W], o, y + i, s)
                collect(row, ws, made + (o * few + i) * run, apart, to, s)


@kernel
def transform_gradient(row: Table, ws: Floats, at: int, s: int) -> None:
    """A dy as [point][output][y][tile][sample]; behind the last column come zeros."""
    wide, high, co, count = row[D_W], row[D_H], row[D_C], across(row)
    point = co * high * count * s + LANES
    for o in range(co):
        for y in range(high):
            up = line_at(row[D_GAT], row[D_GB], high, wide, o, y, s)
            to = at + (o * high + y) * count * s
            for t in range(count):
                source = up + t * TILE * s
                if (t + 1) * TILE > wide:
                    source = put_aside(row, ws, source, (wide - t * TILE) * s, TILE * s)
                if row[SIZE_Y] == 3:
                    powers3(ws, source, s, ws, to + t * s, point, s)
                else:
                    powers5(ws, source, s, ws, to + t * s, point, s)


@kernel
def tiled_by_weights(row: Table, ws: Floats, g: Floats, gradient: int, s: int) -> None:
    """Eq. 2, added to g."""
    k, span, ci, co, high = row[SIZE_Y], span_of(row), row[S_C], row[D_C], row[D_H]
    start, plane, point = transformed(row, s)
    run, count = across(row) * s, co * ci * k
    found = row[KEPT] + span * count
    fill(ws, found, found + span * count)
    taps = np.empty(ci * k, np.int64)
    for c in range(ci):
        for y in range(k):
            taps[c * k + y] = c * plane + y * run
    rows = parts(high, max(_LONG // run, 1))
    for y in range(0, high, rows):
        for p in range(span):
            call_sums(
                row[SUMS], co, taps.size, ws, found + p * count, taps.size,
                ws, gradient + p * (co * high * run + LANES) + y * run, high * run, 0,
                ws, start + p * point + y * run, taps, 0, 1, min(rows, high - y) * run,
            )  # fmt: skip
    if k == 3:
        unfiltered3(ws, found, count, ws, found, count, count)
    else:
        unfiltered5(ws, found, count, ws, found, count, count)
    for j in range(count):
        for x in range(k):
            g[row[WEIGHT] + j * k + x] += ws[found + x * count + j]


@kernel
def tiled_by_input(row: Table, ws: Floats, gradient: int, s: int) -> None:
    """Eq. 3, row by row. Taps that only meet the border are left out."""
    k, span, ci, co, pad, high = row[SIZE_Y], span_of(row), row[S_C], row[D_C], row[PAD], row[D_H]
    count, size = across(row), co * ci * k
    run = count * s
    line = row[SCRATCH] + span * s
    made = line + (count * TILE + k) * s
    block = parts(co, max(HOT // (k * run), 1))
    for y in range(row[S_H]):
        tap = max(y + pad - high + 1, 0)
        taps = min(k, y + pad + 1) - tap
        for p in range(span):
            for c in range(0, co, block):
                up = gradient + p * (co * high * run + LANES) + (c * high + y + pad - tap) * run
                call_panels(
                    row[PANELS], ci, ws, made + p * ci * run, run,
                    ws, row[KEPT] + p * size + c * ci * k + tap, k, ci * k, 0, 1,
                    ws, up, high * run, 0, -run, min(block, co - c), 1, taps, ws, row[ZERO], 0, int(c > 0), run,
                )  # fmt: skip
        for c in range(ci):
            fill(ws, line, made)
            for t in range(count):
                if k == 3:
                    from_points3(ws, made + c * run + t * s, ci * run, ws, line + t * TILE * s, s, s)
                else:
                    from_points5(ws, made + c * run + t * s, ci * run, ws, line + t * TILE * s, s, s)
            at = line_at(row[S_GAT], row[S_GB], row[S_H], row[S_W], c, y, s)
            found, out = ws[line + pad * s : line + (pad + row[S_W]) * s], ws[at : at + row[S_W] * s]
            if row[WRITES] == 1:
                for j in range(out.size):
                    out[j] += found[j]
            else:
                for j in range(out.size):
                    out[j] = found[j]


@kernel
def tiled_backward(row: Table, ws: Floats, g: Floats, s: int) -> None:
    """Gradients by weights, added to g, and by the input."""
    count = across(row)
    gradient = row[SCRATCH] + (span_of(row) * (1 + row[S_C] * count) + count * TILE + row[SIZE_Y]) * s
    transform_gradient(row, ws, gradient, s)
    tiled_by_weights(row, ws, g, gradient, s)
    if row[WRITES] >= 0:
        tiled_by_input(row, ws, gradient, s)
