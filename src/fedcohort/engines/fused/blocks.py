"""Micro-kernels put together for any number of rows and taps, compiled once and called by address."""

from __future__ import annotations

from typing import Any

from numba import types

from .compile import kernel, part
from .vectors import LANES, panel1, panel2, panel3, panel4
from .winners import gather, spread

_P, _N = types.CPointer(types.float32), types.intp
_PANELS = types.void(_N, _P, _N, _N, _P, *[_N] * 5, _P, *[_N] * 7, _P, *[_N] * 4)
_TAPS = types.void(_N, _N, _P, _N, _P, _N, _N, types.CPointer(types.int64), _P, _N, _N)


@part(_PANELS)
def panels(
    rows: int, c: Any, co: int, cr: int, a: Any, ao: int, ar: int, ac: int, ay: int, ax: int,
    b: Any, bo: int, bc: int, by: int, bx: int, nc: int, ny: int, nx: int,
    bias: Any, io: int, ir: int, again: int, length: int,
) -> None:  # fmt: skip
    """C[r] over a run, for any number of rows: fours and threes, a two or a one at the end."""
    add = again != 0
    r = 0
    while r < rows:
        left = rows - r
        cq, aq, iq = co + r * cr, ao + r * ar, io + r * ir
        if left == 4 or left == 7 or left == 8 or left >= 10:
            panel4(c, cq, cr, a, aq, ar, ac, ay, ax, b, bo, bc, by, bx, nc, ny, nx, bias, iq, ir, add, length)
            r += 4
        elif left >= 3:
            panel3(c, cq, cr, a, aq, ar, ac, ay, ax, b, bo, bc, by, bx, nc, ny, nx, bias, iq, ir, add, length)
            r += 3
        elif left == 2:
            panel2(c, cq, cr, a, aq, ar, ac, ay, ax, b, bo, bc, by, bx, nc, ny, nx, bias, iq, ir, add, length)
            r += 2
        else:
            panel1(c, cq, cr, a, aq, ar, ac, ay, ax, b, bo, bc, by, bx, nc, ny, nx, bias, iq, ir, add, length)
            r += 1


@kernel
def shape_of(vectors: int, k: int) -> tuple[int, int]:
    """Vectors and rows of the next walk, where so many are left."""
    parts = (vectors + 11) // 12
    wide = (vectors + parts - 1) // parts
    if wide > 6:
        return wide // 2 * 2, 1
    most = 5 if wide <= 2 else (3 if wide <= 4 else 2)
    return wide, 3 if k == 4 and most == 5 else min(k, most)


@part(_TAPS)
def gather_taps(
    k: int, vectors: int, g: Any, go: int, x: Any, xo: int, line: int, place: Any, value: Any, lo: int, count: int
) -> None:
    """Weight gradient of one output channel, k rows of `vectors` vectors, added to by one list of places."""
    v = 0
    while v < vectors:
        y, wide = 0, 0
        while y < k:
            wide, rows = shape_of(vectors - v, k - y)
            groups = (k - y) // rows
            at = go + y * vectors * LANES + v * LANES
            gather(
                rows, wide, g, at, vectors * LANES, x, xo + y * line + v * LANES, line, groups, place, value, lo, count
            )  # fmt: skip
            y += groups * rows
        v += wide


@part(_TAPS)
def spread_taps(
    k: int, vectors: int, w: Any, wo: int, x: Any, xo: int, line: int, place: Any, value: Any, lo: int, count: int
) -> None:
    """Input gradient, added to by one output channel's weights at every place of a list."""
    v = 0
    while v < vectors:
        y, wide = 0, 0
        while y < k:
            wide, rows = shape_of(vectors - v, k - y)
            groups = (k - y) // rows
            at = wo + y * vectors * LANES + v * LANES
            spread(
                rows, wide, w, at, vectors * LANES, x, xo + y * line + v * LANES, line, groups, place, value, lo, count
            )  # fmt: skip
            y += groups * rows
        v += wide
