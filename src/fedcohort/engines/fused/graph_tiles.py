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
    SUMS,
    TILED,
    WEIGHT,
    WRITES,
    ZERO,
    call_sums,
)
from .kernels import HOT, Floats, Table, fill, parts
from .tiles import SPAN, TAPS, TILE, at_points, collected, filtered, from_points, powers, unfiltered
from .vectors import LANES, call_panels

ROWS = 4  # of 16 samples, that make one run of the forward pass
_LONG = 1024  # floats of a run over which one tile of weight gradients is summed up


def pays(k: int, channels: int, wide: int) -> bool:
    """Whether tiles are worth their transformations: with filters of 5 taps, several channels and some width."""
    return k == TAPS and channels > 1 and wide > TILE


def room(channels: tuple[int, int], high: tuple[int, int], wide: int, pad: int) -> tuple[int, int, int]:
    """Floats that are kept for the backward step, at all and for each sample, and of scratch for each sample."""
    (ci, co), (above, below), count = channels, high, -(-wide // TILE)
    forward = SPAN * co * min(below, ROWS) * count
    backward = count * TILE + TAPS + SPAN * count * (ci + co * below)
    fixed = 2 * SPAN * co * ci * TAPS + SPAN * LANES
    return fixed, SPAN * ci * (above + 2 * pad) * count, 2 * SPAN + max(forward, backward)


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
    start = row[KEPT] + 2 * SPAN * row[D_C] * row[S_C] * TAPS
    return start, plane, row[S_C] * plane + LANES


@kernel
def transform_weights(row: Table, ws: Floats, w: Floats) -> None:
    """G w as [point][output][input][ky]."""
    count = row[D_C] * row[S_C] * TAPS
    turned = row[KEPT] + SPAN * count
    for j in range(count):
        for x in range(TAPS):
            ws[turned + x * count + j] = w[row[WEIGHT] + j * TAPS + x]
    filtered(ws, turned, count, ws, row[KEPT], count, count)


@kernel
def transform_input(row: Table, ws: Floats, s: int) -> None:
    """B^T d as [point][input][y][tile][sample], with rows of border. Behind the last column come zeros."""
    pad, count = row[PAD], across(row)
    start, plane, point = transformed(row, s)
    wide = row[S_W] + 2 * pad
    for c in range(row[S_C]):
        for y in range(row[S_H] + 2 * pad):
            at = line_at(row[S_AT], row[S_B], row[S_H], row[S_W], c, y - pad, s) - pad * s
            to = start + c * plane + y * count * s
            for t in range(count):
                if t * TILE + SPAN <= wide:
                    at_points(ws, at + t * TILE * s, s, ws, to + t * s, point, s)
                    continue
                there = (wide - t * TILE) * s
                for j in range(there):
                    ws[row[SCRATCH] + j] = ws[at + t * TILE * s + j]
                fill(ws, row[SCRATCH] + there, row[SCRATCH] + SPAN * s)
                at_points(ws, row[SCRATCH], s, ws, to + t * s, point, s)


@kernel
def collect(row: Table, ws: Floats, at: int, point: int, to: int, s: int) -> None:
    """A^T z: the outputs of a row."""
    wide = row[D_W]
    for t in range(across(row)):
        whole = (t + 1) * TILE <= wide
        out = to + t * TILE * s if whole else row[SCRATCH]
        collected(ws, at + t * s, point, ws, out, s, s)
        if not whole:
            for j in range((wide - t * TILE) * s):
                ws[to + t * TILE * s + j] = ws[out + j]


@kernel
def tiled_forward(row: Table, ws: Floats, w: Floats, s: int, first: int) -> None:
    """Eq. 1. The weights are transformed with the first block of a batch. A bias is added at point 1, whose powers
    are all 1."""
    ci, co, high = row[S_C], row[D_C], row[D_H]
    if first == 0:
        transform_weights(row, ws, w)
    transform_input(row, ws, s)
    start, plane, point = transformed(row, s)
    run, size, made = across(row) * s, co * ci * TAPS, row[SCRATCH] + SPAN * s
    rows = max(min(16 * ROWS // s, high), 1)
    block = parts(ci, max(HOT // ((rows + TAPS - 1) * run), 1))
    for y in range(0, high, rows):
        few = min(rows, high - y)
        apart = co * few * run + LANES
        for p in range(SPAN):
            biased = p == 1 and row[BIAS] >= 0
            bias = w if biased else ws
            at, further = (row[BIAS], 1) if biased else (row[ZERO], 0)
            for c in range(0, ci, block):
                call_panels(
                    row[PANELS], co, ws, made + p * apart, few * run,
                    ws, row[KEPT] + p * size + c * TAPS, ci * TAPS, TAPS, 0, 1,
                    ws, start + p * point + c * plane + y * run, plane, 0, run,
                    min(block, ci - c), 1, TAPS, bias, at, further, int(c > 0), few * run,
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
                    there = (wide - t * TILE) * s
                    for j in range(there):
                        ws[row[SCRATCH] + j] = ws[source + j]
                    fill(ws, row[SCRATCH] + there, row[SCRATCH] + TILE * s)
                    source = row[SCRATCH]
                powers(ws, source, s, ws, to + t * s, point, s)


@kernel
def tiled_by_weights(row: Table, ws: Floats, g: Floats, gradient: int, s: int) -> None:
    """Eq. 2, added to g."""
    ci, co, high = row[S_C], row[D_C], row[D_H]
    start, plane, point = transformed(row, s)
    run, count = across(row) * s, co * ci * TAPS
    found = row[KEPT] + SPAN * count
    fill(ws, found, found + SPAN * count)
    taps = np.empty(ci * TAPS, np.int64)
    for c in range(ci):
        for y in range(TAPS):
            taps[c * TAPS + y] = c * plane + y * run
    rows = parts(high, max(_LONG // run, 1))
    for y in range(0, high, rows):
        for p in range(SPAN):
            call_sums(
                row[SUMS], co, taps.size, ws, found + p * count, taps.size,
                ws, gradient + p * (co * high * run + LANES) + y * run, high * run, 0,
                ws, start + p * point + y * run, taps, 0, 1, min(rows, high - y) * run,
            )  # fmt: skip
    unfiltered(ws, found, count, ws, found, count, count)
    for j in range(count):
        for x in range(TAPS):
            g[row[WEIGHT] + j * TAPS + x] += ws[found + x * count + j]


@kernel
def tiled_by_input(row: Table, ws: Floats, gradient: int, s: int) -> None:
    """Eq. 3, row by row. Taps that only meet the border are left out."""
    ci, co, pad, high = row[S_C], row[D_C], row[PAD], row[D_H]
    count, size = across(row), co * ci * TAPS
    run = count * s
    line = row[SCRATCH] + SPAN * s
    made = line + (count * TILE + TAPS) * s
    block = parts(co, max(HOT // (TAPS * run), 1))
    for y in range(row[S_H]):
        tap = max(y + pad - high + 1, 0)
        taps = min(TAPS, y + pad + 1) - tap
        for p in range(SPAN):
            for c in range(0, co, block):
                up = gradient + p * (co * high * run + LANES) + (c * high + y + pad - tap) * run
                call_panels(
                    row[PANELS], ci, ws, made + p * ci * run, run,
                    ws, row[KEPT] + p * size + c * ci * TAPS + tap, TAPS, ci * TAPS, 0, 1,
                    ws, up, high * run, 0, -run, min(block, co - c), 1, taps, ws, row[ZERO], 0, int(c > 0), run,
                )  # fmt: skip
        for c in range(ci):
            fill(ws, line, made)
            for t in range(count):
                from_points(ws, made + c * run + t * s, ci * run, ws, line + t * TILE * s, s, s)
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
    gradient = row[SCRATCH] + (SPAN + count * TILE + TAPS + SPAN * row[S_C] * count) * s
    transform_gradient(row, ws, gradient, s)
    tiled_by_weights(row, ws, g, gradient, s)
    if row[WRITES] >= 0:
        tiled_by_input(row, ws, gradient, s)
