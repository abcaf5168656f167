"""Micro-kernels put together for any number of rows and taps, compiled once and called by address.

Numba links what a function calls into it and optimises it again, at every level. These two hold most of the code, so
they are C functions of their own: compiling the engine takes seconds instead of a minute.
"""

from __future__ import annotations

from typing import Any

from numba import types

from .compile import c_function
from .vectors import (
    LANES,
    dots11,
    dots13,
    dots15,
    dots21,
    dots23,
    dots25,
    dots41,
    dots43,
    panel1,
    panel2,
    panel3,
    panel4,
)

_P, _N = types.CPointer(types.float32), types.intp
_PANELS = types.void(_N, _P, _N, _N, _P, *[_N] * 5, _P, *[_N] * 7, _P, *[_N] * 4)
_DOTS = types.void(_N, _N, _P, _N, _N, _P, _N, _N, _P, _N, _N, _N)


@c_function(_PANELS)
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


@c_function(_DOTS)
def dot_rows(
    rows: int, taps: int, g: Any, go: int, gr: int, d: Any, do: int, dr: int, b: Any, bo: int, bt: int, n: int
) -> None:
    """Lane-wise dot products of `rows` gradient rows with `taps` shifted input rows."""
    t = 0
    while t < taps:
        wide = 5 if taps - t >= 5 else (3 if taps - t >= 3 else 1)
        gt, bq = go + t * LANES, bo + t * bt
        r = 0
        while r < rows:
            left = rows - r
            gq, dq = gt + r * gr, do + r * dr
            if wide == 5 and left >= 2:
                dots25(g, gq, gr, d, dq, dr, b, bq, bt, n)
                r += 2
            elif wide == 5:
                dots15(g, gq, gr, d, dq, dr, b, bq, bt, n)
                r += 1
            elif wide == 3 and left >= 4:
                dots43(g, gq, gr, d, dq, dr, b, bq, bt, n)
                r += 4
            elif wide == 3 and left >= 2:
                dots23(g, gq, gr, d, dq, dr, b, bq, bt, n)
                r += 2
            elif wide == 3:
                dots13(g, gq, gr, d, dq, dr, b, bq, bt, n)
                r += 1
            elif left >= 4:
                dots41(g, gq, gr, d, dq, dr, b, bq, bt, n)
                r += 4
            elif left >= 2:
                dots21(g, gq, gr, d, dq, dr, b, bq, bt, n)
                r += 2
            else:
                dots11(g, gq, gr, d, dq, dr, b, bq, bt, n)
                r += 1
        t += wide
