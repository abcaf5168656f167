"""Steps of a layer graph: normalisation by the statistics of a group of channels, or of a batch.

A row of a channel is a run of (x, sample) floats. Sums are made row upon row into one such run, which is folded over
x (statistics of a sample) or altogether (statistics of a batch) at the end: all lanes are used and no addition waits
for the one before it. Statistics are made in two passes, mean first, as small variances would be lost otherwise.
"""

from __future__ import annotations

import math

import numpy as np

from .backward import total
from .compile import kernel, part
from .graph_rows import (
    BIAS,
    CONSTANTS,
    D_AT,
    D_B,
    D_GAT,
    D_GB,
    GROUPS,
    KEPT,
    RELU,
    S_AT,
    S_B,
    S_C,
    S_GAT,
    S_GB,
    S_H,
    S_W,
    STATS,
    STEP_OF,
    WEIGHT,
    WRITES,
)
from .kernels import Floats, Table

_ZERO, _ONE = np.float32(0.0), np.float32(1.0)


@kernel
def line_at(at: int, border: int, high: int, wide: int, c: int, y: int, s: int) -> int:
    """Where row y of channel c starts, behind its border."""
    return at + ((c * (high + 2 * border) + y + border) * (wide + 2 * border) + border) * s


@kernel
def fold(run: Floats, whole: bool, share: np.float32, out: Floats) -> None:
    """out[j] = share times the sum over x of run[x][j], or of everything for all j."""
    s = out.size
    if whole:
        out[:] = total(run) * share
        return
    for j in range(s):
        out[j] = _ZERO
    for x in range(run.size // s):
        part = run[x * s : (x + 1) * s]
        for j in range(s):
            out[j] += part[j]
    for j in range(s):
        out[j] *= share


@kernel
def repeat(part: Floats, run: Floats) -> None:
    """run[x][j] = part[j]."""
    s = part.size
    for x in range(run.size // s):
        out = run[x * s : (x + 1) * s]
        for j in range(s):
            out[j] = part[j]


@kernel
def add_lines(row: Table, ws: Floats, c: int, s: int, acc: Floats) -> None:
    """acc += all rows of a channel."""
    high, wide = row[S_H], row[S_W]
    for y in range(high):
        at = line_at(row[S_AT], row[S_B], high, wide, c, y, s)
        x = ws[at : at + wide * s]
        for j in range(x.size):
            acc[j] += x[j]


@kernel
def add_squares(row: Table, ws: Floats, c: int, s: int, mean: Floats, acc: Floats) -> None:
    """acc += squares of all rows of a channel, centred."""
    high, wide = row[S_H], row[S_W]
    for y in range(high):
        at = line_at(row[S_AT], row[S_B], high, wide, c, y, s)
        x = ws[at : at + wide * s]
        for j in range(x.size):
            acc[j] += (x[j] - mean[j]) * (x[j] - mean[j])


@kernel
def normalise(row: Table, ws: Floats, w: Floats, c: int, s: int, mean: Floats, root: Floats) -> None:
    """The output of one channel."""
    high, wide, relu = row[S_H], row[S_W], row[RELU] == 1
    scale, shift = w[row[WEIGHT] + c], w[row[BIAS] + c]
    for y in range(high):
        at = line_at(row[S_AT], row[S_B], high, wide, c, y, s)
        to = line_at(row[D_AT], row[D_B], high, wide, c, y, s)
        x, out = ws[at : at + wide * s], ws[to : to + wide * s]
        if relu:
            for j in range(x.size):
                z = (x[j] - mean[j]) * root[j] * scale + shift
                out[j] = _ZERO if z <= _ZERO else z
        else:
            for j in range(x.size):
                out[j] = (x[j] - mean[j]) * root[j] * scale + shift


@kernel
def remember(row: Table, ws: Floats, stats: Floats, c: int, mean: np.float32, var: np.float32, n: int) -> None:
    """Let the running statistics of a channel follow those of a batch; of the variance the unbiased one."""
    share = ws[row[CONSTANTS] + 1]
    at = row[STATS] + c
    stats[at] += share * (mean - stats[at])
    at += row[S_C]
    stats[at] += share * (var * np.float32(n / (n - 1.0)) - stats[at])


@part(STEP_OF)
def norm_forward_step(
    row: Table, ws: Floats, w: Floats, g: Floats, stats: Floats, s: int, train: int, key: int, first: int
) -> None:
    """Statistics, of which mean and 1 / deviation are kept as [group][2][sample], then the output."""
    channels, high, wide = row[S_C], row[S_H], row[S_W]
    batch = row[GROUPS] == 0
    groups = channels if batch else row[GROUPS]
    each = channels // groups
    n = each * high * wide * (s if batch else 1)
    acc, mean, root = np.empty(wide * s, np.float32), np.empty(wide * s, np.float32), np.empty(wide * s, np.float32)
    for group in range(groups):
        at = row[KEPT] + 2 * group * s
        middle, inverse = ws[at : at + s], ws[at + s : at + 2 * s]
        if batch and train == 0:
            middle[:] = stats[row[STATS] + group]
            inverse[:] = stats[row[STATS] + channels + group]
        else:
            acc[:] = _ZERO
            for c in range(group * each, (group + 1) * each):
                add_lines(row, ws, c, s, acc)
            fold(acc, batch, np.float32(1.0 / n), middle)
            repeat(middle, mean)
            acc[:] = _ZERO
            for c in range(group * each, (group + 1) * each):
                add_squares(row, ws, c, s, mean, acc)
            fold(acc, batch, np.float32(1.0 / n), inverse)
            if batch:
                remember(row, ws, stats, group, middle[0], inverse[0], n)
        for j in range(s):
            inverse[j] = np.float32(_ONE / math.sqrt(inverse[j] + ws[row[CONSTANTS]]))
        repeat(middle, mean)
        repeat(inverse, root)
        for c in range(group * each, (group + 1) * each):
            normalise(row, ws, w, c, s, mean, root)


@kernel
def weigh(
    row: Table, ws: Floats, c: int, s: int, mean: Floats, root: Floats, first: Floats, second: Floats
) -> None:  # fmt: skip
    """first += gradient, second += gradient * normalised input, over one channel; a ReLU's mask is applied for good."""
    high, wide, relu = row[S_H], row[S_W], row[RELU] == 1
    first[:] = _ZERO
    second[:] = _ZERO
    for y in range(high):
        at = line_at(row[S_AT], row[S_B], high, wide, c, y, s)
        up = line_at(row[D_GAT], row[D_GB], high, wide, c, y, s)
        x, d = ws[at : at + wide * s], ws[up : up + wide * s]
        if relu:
            to = line_at(row[D_AT], row[D_B], high, wide, c, y, s)
            out = ws[to : to + wide * s]
            for j in range(d.size):
                d[j] *= _ZERO if out[j] <= _ZERO else _ONE  # a select would become a masked store: ten times slower
        for j in range(d.size):
            first[j] += d[j]
            second[j] += d[j] * ((x[j] - mean[j]) * root[j])


@kernel
def pass_down(
    row: Table, ws: Floats, c: int, s: int, scale: np.float32, mean: Floats, root: Floats, even: Floats, tilt: Floats
) -> None:
    """Gradient by the input: 1 / deviation * (scale * gradient - even - tilt * normalised input)."""
    high, wide, add = row[S_H], row[S_W], row[WRITES] == 1
    for y in range(high):
        at = line_at(row[S_AT], row[S_B], high, wide, c, y, s)
        up = line_at(row[D_GAT], row[D_GB], high, wide, c, y, s)
        to = line_at(row[S_GAT], row[S_GB], high, wide, c, y, s)
        x, d, out = ws[at : at + wide * s], ws[up : up + wide * s], ws[to : to + wide * s]
        if add:
            for j in range(d.size):
                out[j] += root[j] * (scale * d[j] - even[j] - tilt[j] * ((x[j] - mean[j]) * root[j]))
        else:
            for j in range(d.size):
                out[j] = root[j] * (scale * d[j] - even[j] - tilt[j] * ((x[j] - mean[j]) * root[j]))


@part(STEP_OF)
def norm_backward_step(
    row: Table, ws: Floats, w: Floats, g: Floats, stats: Floats, s: int, train: int, key: int, first: int
) -> None:
    """Gradients by scale and shift, added to g, and by the input. Running statistics are constants."""
    channels, high, wide = row[S_C], row[S_H], row[S_W]
    batch = row[GROUPS] == 0
    groups = channels if batch else row[GROUPS]
    each, run = channels // groups, wide * s
    share = np.float32(1.0 / (each * high * wide * (s if batch else 1)))
    mean, root = np.empty(run, np.float32), np.empty(run, np.float32)
    plain, tilted = np.empty(run, np.float32), np.empty(run, np.float32)
    even, tilt, part = np.empty(run, np.float32), np.empty(run, np.float32), np.empty(s, np.float32)
    for group in range(groups):
        at = row[KEPT] + 2 * group * s
        repeat(ws[at : at + s], mean)
        repeat(ws[at + s : at + 2 * s], root)
        even[:] = _ZERO
        tilt[:] = _ZERO
        for c in range(group * each, (group + 1) * each):
            weigh(row, ws, c, s, mean, root, plain, tilted)
            g[row[BIAS] + c] += total(plain)
            g[row[WEIGHT] + c] += total(tilted)
            scale = w[row[WEIGHT] + c]
            for j in range(run):
                even[j] += scale * plain[j]
                tilt[j] += scale * tilted[j]
        if row[WRITES] < 0:
            continue
        if batch and train == 0:
            even[:] = _ZERO
            tilt[:] = _ZERO
        else:
            fold(even, batch, share, part)
            repeat(part, even)
            fold(tilt, batch, share, part)
            repeat(part, tilt)
        for c in range(group * each, (group + 1) * each):
            pass_down(row, ws, c, s, w[row[WEIGHT] + c], mean, root, even, tilt)
