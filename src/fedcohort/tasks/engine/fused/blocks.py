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
    dots12,
    dots13,
    dots14,
    dots15,
    dots21,
    dots22,
    dots23,
    dots24,
    dots25,
    dots31,
    dots32,
    dots33,
    dots34,
    dots41,
    dots42,
    dots43,
    panel1,
    panel2,
    panel3,
    panel4,
)

_P, _N = types.CPointer(types.float32), types.intp
_PANELS = types.void(_N, _P, _N, _N, _P, *[_N] * 5, _P, *[_N] * 7, _P, *[_N] * 4)
_DOTS = types.void(_N, _N, _P, _N, _N, _P, _N, _N, _N, _P, _N, _N, types.CPointer(types.int64), _N, _N)


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
    rows: int, taps: int, g: Any, go: int, gr: int, d: Any, do: int, dr: int, dl: int,
    b: Any, bo: int, bl: int, shift: Any, lines: int, n: int,
) -> None:  # fmt: skip
    """Lane-wise dot products of `rows` (at most 4) gradient rows with the input under all taps, summed over lines."""
    most = 3 if rows == 4 else (4 if rows == 3 else 5)
    t = 0
    while t < taps:
        groups = (taps - t + most - 1) // most
        wide = (taps - t + groups - 1) // groups
        gq = go + t * LANES
        if rows == 4 and wide == 3:
            dots43(g, gq, gr, d, do, dr, dl, b, bo, bl, shift, t, lines, n)
        elif rows == 4 and wide == 2:
            dots42(g, gq, gr, d, do, dr, dl, b, bo, bl, shift, t, lines, n)
        elif rows == 4 and wide == 1:
            dots41(g, gq, gr, d, do, dr, dl, b, bo, bl, shift, t, lines, n)
        elif rows == 3 and wide == 4:
            dots34(g, gq, gr, d, do, dr, dl, b, bo, bl, shift, t, lines, n)
        elif rows == 3 and wide == 3:
            dots33(g, gq, gr, d, do, dr, dl, b, bo, bl, shift, t, lines, n)
        elif rows == 3 and wide == 2:
            dots32(g, gq, gr, d, do, dr, dl, b, bo, bl, shift, t, lines, n)
        elif rows == 3 and wide == 1:
            dots31(g, gq, gr, d, do, dr, dl, b, bo, bl, shift, t, lines, n)
        elif rows == 2 and wide == 5:
            dots25(g, gq, gr, d, do, dr, dl, b, bo, bl, shift, t, lines, n)
        elif rows == 2 and wide == 4:
            dots24(g, gq, gr, d, do, dr, dl, b, bo, bl, shift, t, lines, n)
        elif rows == 2 and wide == 3:
            dots23(g, gq, gr, d, do, dr, dl, b, bo, bl, shift, t, lines, n)
        elif rows == 2 and wide == 2:
            dots22(g, gq, gr, d, do, dr, dl, b, bo, bl, shift, t, lines, n)
        elif rows == 2 and wide == 1:
            dots21(g, gq, gr, d, do, dr, dl, b, bo, bl, shift, t, lines, n)
        elif rows == 1 and wide == 5:
            dots15(g, gq, gr, d, do, dr, dl, b, bo, bl, shift, t, lines, n)
        elif rows == 1 and wide == 4:
            dots14(g, gq, gr, d, do, dr, dl, b, bo, bl, shift, t, lines, n)
        elif rows == 1 and wide == 3:
            dots13(g, gq, gr, d, do, dr, dl, b, bo, bl, shift, t, lines, n)
        elif rows == 1 and wide == 2:
            dots12(g, gq, gr, d, do, dr, dl, b, bo, bl, shift, t, lines, n)
        else:
            dots11(g, gq, gr, d, do, dr, dl, b, bo, bl, shift, t, lines, n)
        t += wide
