"""Layers: the backward pass of one block of samples.

Samples come one after the other here, channels innermost: gradients lie as [sample][y][x][channel] in front of a
convolution and as [sample][feature] in front of a linear layer. Only the places of a convolution that won their pool
and passed the ReLU have a gradient; everything else is left out (see `winners.py`).
"""

from __future__ import annotations

import numpy as np

from .compile import kernel
from .kernels import HOT, Bytes, Floats, Index, Table, fill, turn
from .layout import (
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
from .samples import turn8
from .vectors import LANES, call_panels, call_taps
from .winners import sieve


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
def pixels_from(row: Table, ws: Floats, x: Floats, at: int) -> None:
    """Bring sample `at` of x (n, features) into [y][x][channel], with a border of zeros."""
    high, wide, pad, ci = row[HI], row[WI], row[PAD], row[CI]
    line = (wide + 2 * pad) * ci
    if pad:
        fill(ws, row[PIXELS], row[PIXELS] + (high + 2 * pad) * line)
    flat = x.reshape(-1)
    for y in range(high):
        start = row[PIXELS] + (y + pad) * line + pad * ci
        out = ws[start : start + wide * ci]
        for c in range(ci):
            begin = ((at * ci + c) * high + y) * wide
            source = flat[begin : begin + wide]
            for j in range(wide):
                out[j * ci + c] = source[j]


@kernel
def spread_weights(row: Table, ws: Floats, w: Floats) -> None:
    """Weights of a convolution as [output][ky][kx][channel]; the channels that fill up a vector are zero."""
    k, ci, spaced = row[KERNEL], row[CI], row[SPACED]
    fill(ws, row[SPREAD], row[SPREAD] + row[CO] * k * row[VECTORS] * LANES)
    for o in range(row[CO]):
        for ky in range(k):
            start = row[SPREAD] + (o * k + ky) * row[VECTORS] * LANES
            out = ws[start : start + k * spaced]
            for kx in range(k):
                for c in range(ci):
                    out[kx * spaced + c] = w[row[WEIGHT] + ((o * ci + c) * k + ky) * k + kx]


@kernel
def conv_backward(
    row: Table,
    after: Table,
    first: bool,
    ws: Floats,
    winners: Bytes,
    w: Floats,
    g: Floats,
    x: Floats,
    at: Index,
    s: int,
) -> None:
    """Bias gradients into g, weight gradients into the taps, and the gradient by the input unless this stage is first.

    `at` are the samples in x; further places of the block hold no sample and have no gradient.
    """
    k, co, vectors = row[KERNEL], row[CO], row[VECTORS]
    line = (row[WI] + 2 * row[PAD]) * row[SPACED]
    image = (row[HI] + 2 * row[PAD]) * line
    grads, corners, within = windows(row, after)
    count = corners.size
    by_sample = (
        (after[HI] + 2 * after[PAD]) * (after[WI] + 2 * after[PAD]) * after[SPACED] if after[CONV] else after[CI]
    )
    by_channel = 1 if after[CONV] else count
    place, value = np.empty(count + 2, np.int64), np.empty(count + 2, np.float32)
    if not first:
        spread_weights(row, ws, w)
    for i in range(at.size):
        source = row[PIXELS]
        if first:
            pixels_from(row, ws, x, at[i])
        else:
            u = min(i // GROUP * GROUP, s - GROUP)
            source += (i - u) * image
            if i % GROUP == 0:
                pixels_of(row, ws, u, s)
            fill(ws, row[GRAD] + i * image, row[GRAD] + (i + 1) * image)
        for o in range(co):
            up = after[GRAD] + i * by_sample + o * by_channel
            n = sieve(
                winners, row[WINNER] + o * count * s + i, s, ws, up, grads, corners, within, count, place, value, 0
            )
            place[n], value[n] = 0, np.float32(0.0)
            g[row[BIAS] + o] += total(value[:n])
            taps = o * k * vectors * LANES
            call_taps(row[GATHER], k, vectors, ws, row[TAPS] + taps, ws, source, line, place, value, 0, n)
            if not first:
                down = row[GRAD] + i * image
                call_taps(row[SCATTER], k, vectors, ws, row[SPREAD] + taps, ws, down, line, place, value, 0, n)


@kernel
def linear_backward(
    row: Table, after: Table, first: bool, last: bool, ws: Floats, w: Floats, g: Floats, zero: Floats, add: bool, s: int
) -> None:
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
def backward(
    table: Table,
    ws: Floats,
    winners: Bytes,
    w: Floats,
    g: Floats,
    x: Floats,
    at: Index,
    zero: Floats,
    add: bool,
    s: int,
) -> None:
    """From the gradient by the logits to g, which is added to if `add`; taps keep their own order."""
    end = table.shape[0] - 2
    for i in range(end, -1, -1):
        if table[i, CONV]:
            conv_backward(table[i], table[i + 1], i == 0, ws, winners, w, g, x, at, s)
        else:
            linear_backward(table[i], table[i + 1], i == 0, i == end, ws, w, g, zero, add, s)


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
        k, ci, spaced = row[KERNEL], row[CI], row[SPACED]
        for o in range(row[CO] if row[CONV] else 0):
            for ky in range(k):
                start = row[TAPS] + (o * k + ky) * row[VECTORS] * LANES
                taps = ws[start : start + k * spaced]
                for c in range(ci):
                    out = g[row[WEIGHT] + ((o * ci + c) * k + ky) * k :]
                    for kx in range(k):
                        out[kx] = taps[kx * spaced + c]
