"""Layers: the backward pass of one block of samples.

Samples come one after the other here, channels innermost: gradients lie as [sample][y][x][channel] in front of a
convolution and as [sample][feature] in front of a linear layer. Only the places of a convolution that won their pool
and passed the ReLU have a gradient; everything else is left out (see `winners.py`).
"""

from __future__ import annotations

import numpy as np

from .compile import kernel, part
from .kernels import HOT, Bytes, Floats, Index, Table, fill, turn
from .samples import turn8
from .signatures import BACKWARD_OF
from .vectors import LANES, call_panels, call_taps
from .winners import compact_nonzero
from .workspace import (
    ACT,
    BIAS,
    CI,
    CO,
    CONV,
    GATHER,
    GRAD,
    GROUP,
    HI,
    KERNEL,
    OH,
    OW,
    PAD,
    PANELS,
    PIXELS,
    POOL,
    RELU,
    SCATTER,
    SPACED,
    SPREAD,
    TAPS,
    TURNED,
    VECTORS,
    WEIGHT,
    WI,
    WINNER,
)

_LONG = 64  # windows of one list: short lists of several samples are put together


@kernel
def total(a: Floats) -> np.float32:
    """Sum, in as many lanes as the machine has."""
    out = np.float32(0.0)
    for j in range(a.size):
        out += a[j]
    return out


@kernel
def sum_rows(a: Floats, start: int, rows: int, columns: int, out: Floats) -> None:
    """out[j] += sum over i of A[i][j]."""
    for i in range(rows):
        part = a[start + i * columns : start + (i + 1) * columns]
        for j in range(columns):
            out[j] += part[j]


@kernel
def windows(row: Table, after: Table) -> tuple[Index, Index, Index]:
    """For every window: where its gradient lies within a sample and its corner within the input; and, behind one
    entry for nobody, where each winner lies from the corner."""
    size, pw = row[POOL], row[OW] // row[POOL]
    count = row[OH] // size * pw
    line = (row[WI] + 2 * row[PAD]) * row[SPACED]
    pad, wide = after[PAD], after[WI] + 2 * after[PAD]
    grads, corners, within = np.empty(count, np.int64), np.empty(count, np.int64), np.zeros(size * size + 1, np.int64)
    for p in range(count):
        grads[p] = ((p // pw + pad) * wide + p % pw + pad) * after[SPACED] if after[CONV] else p
        corners[p] = p // pw * size * line + p % pw * size * row[SPACED]
    for q in range(size * size):
        within[q + 1] = q // size * line + q % size * row[SPACED]
    return grads, corners, within


@kernel
def pixels_of(row: Table, ws: Floats, u: int, s: int) -> None:
    """Bring `GROUP` samples from u on of a stage's input, borders included, into [sample][y][x][channel]."""
    plane = (row[HI] + 2 * row[PAD]) * (row[WI] + 2 * row[PAD])
    spaced, ci = row[SPACED], row[CI]
    offsets = np.empty(spaced, np.int64)
    for c in range(spaced):
        offsets[c] = min(c, ci - 1) * plane * s
    for c in range(0, spaced, 8):
        for p in range(plane):
            turn8(ws, offsets, c, row[ACT] + p * s + u, ws, row[PIXELS] + p * spaced + c, plane * spaced)


@kernel
def pixels_from(row: Table, ws: Floats, x: Floats, at: Index) -> None:
    """Bring the samples `at` of x (n, features) into [sample][y][x][channel], with a border of zeros."""
    high, wide, pad, ci = row[HI], row[WI], row[PAD], row[CI]
    line = (wide + 2 * pad) * ci
    image = (high + 2 * pad) * line
    if pad:
        fill(ws, row[PIXELS], row[PIXELS] + at.size * image)
    flat = x.reshape(-1)
    for i in range(at.size):
        for y in range(high):
            start = row[PIXELS] + i * image + (y + pad) * line + pad * ci
            out = ws[start : start + wide * ci]
            for c in range(ci):
                begin = ((at[i] * ci + c) * high + y) * wide
                source = flat[begin : begin + wide]
                for j in range(wide):
                    out[j * ci + c] = source[j]


@kernel
def spread_weights(row: Table, ws: Floats, w: Floats) -> None:
    """Weights of a convolution as [output][ky][kx][channel]; the channels that fill up a vector are zero."""
    k, ci, spaced, pitch = row[KERNEL], row[CI], row[SPACED], row[VECTORS] * LANES
    size = ci * k * k
    for o in range(row[CO]):
        out = ws[row[SPREAD] + o * k * pitch : row[SPREAD] + (o + 1) * k * pitch]
        source = w[row[WEIGHT] + o * size : row[WEIGHT] + (o + 1) * size]
        for ky in range(k):
            for kx in range(k):
                at = ky * pitch + kx * spaced
                for c in range(ci):
                    out[np.uint64(at + c)] = source[np.uint64((c * k + ky) * k + kx)]
                for c in range(ci, spaced):
                    out[at + c] = np.float32(0.0)


@kernel
def sift(
    row: Table, after: Table, ws: Floats, winners: Bytes, tables: tuple[Index, Index, Index], image: int, room: int,
    b: int, e: int, place: Index, value: Floats, ends: Index, s: int,
) -> None:  # fmt: skip
    """Lists of the places that won in samples b to e, one per output channel; list o starts at o * room."""
    grads, corners, within = tables
    count = corners.size
    by_sample, by_channel = after[CI], count
    if after[CONV]:
        by_sample, by_channel = (after[HI] + 2 * after[PAD]) * (after[WI] + 2 * after[PAD]) * after[SPACED], 1
    for o in range(row[CO]):
        ends[o] = o * room
    for j in range(b, e):
        for o in range(row[CO]):
            ends[o] = compact_nonzero(
                winners, row[WINNER] + o * count * s + j, s, ws, after[GRAD] + j * by_sample + o * by_channel, grads,
                corners, within, (j - b) * image, count, place, value, ends[o],
            )  # fmt: skip
    for o in range(row[CO]):  # one entry that adds nothing: some walks take two at a time
        place[ends[o]], value[ends[o]] = 0, np.float32(0.0)


@part(BACKWARD_OF)
def conv_backward(
    row: Table, after: Table, first: bool, last: bool, ws: Floats, winners: Bytes, w: Floats, g: Floats, x: Floats,
    at: Index, zero: Floats, add: bool, s: int,
) -> None:  # fmt: skip
    """Bias gradients into g, weight gradients into the taps, and the gradient by the input unless this stage is first.

    `at` are the samples in x; further places of the block hold no sample and have no gradient. As many samples make
    one list of places as have their pixels in the first-level cache.
    """
    co, k, vectors = row[CO], row[KERNEL], row[VECTORS]
    line = (row[WI] + 2 * row[PAD]) * row[SPACED]
    image, taps = (row[HI] + 2 * row[PAD]) * line, k * vectors * LANES
    tables = windows(row, after)
    many = max(min(HOT // image, _LONG // tables[1].size, GROUP), 1)
    room = tables[1].size * many + 1
    place, value, ends = np.empty(co * room, np.int64), np.empty(co * room, np.float32), np.empty(co, np.int64)
    if not first:
        spread_weights(row, ws, w)
    for i in range(0, at.size, GROUP):
        u = i if first else min(i, s - GROUP)
        if first:
            pixels_from(row, ws, x, at[i : i + GROUP])
        else:
            pixels_of(row, ws, u, s)
        for b in range(i, min(i + GROUP, at.size), many):
            e = min(b + many, i + GROUP, at.size)
            sift(row, after, ws, winners, tables, image, room, b, e, place, value, ends, s)
            source, down = row[PIXELS] + (b - u) * image, row[GRAD] + b * image
            for o in range(co):
                lo, n = o * room, ends[o] - o * room
                g[row[BIAS] + o] += total(value[lo : lo + n])
                call_taps(row[GATHER], k, vectors, ws, row[TAPS] + o * taps, ws, source, line, place, value, lo, n)
            if first:
                continue
            fill(ws, down, down + (e - b) * image)
            for o in range(co):
                lo, n = o * room, ends[o] - o * room
                call_taps(row[SCATTER], k, vectors, ws, row[SPREAD] + o * taps, ws, down, line, place, value, lo, n)


@part(BACKWARD_OF)
def linear_backward(
    row: Table, after: Table, first: bool, last: bool, ws: Floats, winners: Bytes, w: Floats, g: Floats, x: Floats,
    at: Index, zero: Floats, add: bool, s: int,
) -> None:  # fmt: skip
    """Gradients of a fully connected layer; the ReLU's mask is where the output is not positive.

    The gradient by its output lies as [feature][sample] behind the last layer, else as [sample][feature], and so does
    the output itself, which the layer behind has turned.
    """
    ci, co, up = row[CI], row[CO], after[GRAD]
    by_output, by_sample = (s, 1) if last else (1, co)
    if row[RELU]:
        down, out = ws[up : up + co * s], ws[after[TURNED] : after[TURNED] + co * s]
        for j in range(out.size):
            down[j] = np.float32(0.0) if out[j] <= np.float32(0.0) else down[j]
    if last:
        for o in range(co):
            g[row[BIAS] + o] += total(ws[up + o * s : up + (o + 1) * s])
    else:
        sum_rows(ws, up, s, co, g[row[BIAS] : row[BIAS] + co])
    if not first:
        turn(ws, row[ACT] + np.arange(ci) * s, ci, 0, s, ws, row[TURNED], ci)
    block = max(HOT // s // LANES, 1) * LANES
    for f in range(0, ci, block):
        call_panels(
            row[PANELS],
            co, g, row[WEIGHT] + f, ci, ws, up, by_output, 0, 0, by_sample,
            ws, row[TURNED] + f, 0, 0, ci, 1, 1, s, zero, 0, 0, int(add), min(block, ci - f),
        )  # fmt: skip
    if first:
        return
    block = max(HOT // co // LANES, 3) * LANES
    for f in range(0, ci, block):
        call_panels(
            row[PANELS],
            s, ws, row[GRAD] + f, ci, ws, up, by_sample, 0, 0, by_output,
            w, row[WEIGHT] + f, 0, 0, ci, 1, 1, co, zero, 0, 0, 0, min(block, ci - f),
        )  # fmt: skip


@kernel
def clear_gradients(table: Table, ws: Floats, g: Floats) -> None:
    """Zero the biases of g and the taps; linear weights are overwritten by the first block."""
    for i in range(table.shape[0] - 1):
        fill(g, table[i, BIAS], table[i, BIAS] + table[i, CO])
        if table[i, CONV]:
            size = table[i, CO] * table[i, KERNEL] * table[i, VECTORS] * LANES
            fill(ws, table[i, TAPS], table[i, TAPS] + size)


@kernel
def order_taps(table: Table, ws: Floats, g: Floats) -> None:
    """Weight gradients of convolutions, from [output][ky][kx][channel] to the order of the weights."""
    for i in range(table.shape[0] - 1):
        row = table[i]
        k, ci, spaced, pitch = row[KERNEL], row[CI], row[SPACED], row[VECTORS] * LANES
        size = ci * k * k
        for o in range(row[CO] if row[CONV] else 0):
            taps = ws[row[TAPS] + o * k * pitch : row[TAPS] + (o + 1) * k * pitch]
            out = g[row[WEIGHT] + o * size : row[WEIGHT] + (o + 1) * size]
            for ky in range(k):
                for kx in range(k):
                    at = ky * pitch + kx * spaced
                    for c in range(ci):
                        out[np.uint64((c * k + ky) * k + kx)] = taps[np.uint64(at + c)]
