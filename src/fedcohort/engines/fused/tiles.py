"""Micro-kernels of convolutions with fewer multiplications (Toom and Cook, Winograd), along one axis.

    A. Lavin, S. Gray: Fast algorithms for convolutional neural networks. CVPR 2016.

A filter w of 5 taps over 8 inputs d gives a tile of 4 outputs y. Taken as polynomials, all of them are known by
their values at 8 points (0, +-1, +-2, +-1/2 and infinity), and there a convolution is one product for each point:

    y  = A^T [(G w) * (B^T d)]      8 products instead of 20                                                     (1)
    dw = G^T [(A dy) * (B^T d)]     the gradient by the filter                                                   (2)
    dd = B [(G w) * (A dy)]         the gradient by the inputs, to be added up where tiles overlap               (3)

Row p of A are the powers of point p, row p of G the same divided by the product of its distances from the others, and
row p of B^T the coefficients of the polynomial that is zero at all others. Samples are innermost: every product is one
of vectors. Rounding errors are some ten times those of a plain sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .vectors import CONTRACT, I64, LANES, VEC, N, Run, at_offset

TAPS, TILE, SPAN = 5, 4, 8  # of the filter, outputs, and inputs (as many as there are points)
POINTS = (0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5)  # infinity is the last one
_PAIRS = POINTS[1::2]
_DISTANCES = [math.prod(here - other for other in POINTS if other != here) for here in POINTS]
_SCALES = [-1.0 / _DISTANCES[0], *(1.0 / each for each in _DISTANCES[1:]), 1.0]  # row 0 of B^T has its sign changed
_SQUARES = {a: [b * b for b in _PAIRS if b != a] for a in _PAIRS}  # of the other pairs

Vectors = list[Any]


class _Builder:
    """Sums of vectors with constant factors."""

    def __init__(self, builder: Any) -> None:
        self.builder = builder

    def total(self, *terms: tuple[float, Any]) -> Any:
        """Sum of factor * vector, beginning with the first."""
        found = None
        for factor, vector in terms:
            if found is None:
                found = vector if factor == 1.0 else self._scaled(factor, vector)
            elif factor in (1.0, -1.0):
                found = (self.builder.fadd if factor > 0 else self.builder.fsub)(found, vector, flags=CONTRACT)
            else:
                found = self.builder.fadd(found, self._scaled(factor, vector), flags=CONTRACT)
        return found

    def _scaled(self, factor: float, vector: Any) -> Any:
        return self.builder.fmul(ir.Constant(VEC, [float(factor)] * LANES), vector, flags=CONTRACT)

    def both(self, even: Any, odd: Any) -> Vectors:
        """The values at a point and at its negative."""
        return [self.total((1.0, even), (1.0, odd)), self.total((1.0, even), (-1.0, odd))]


def _at_points(b: _Builder, d: Sequence[Any]) -> Vectors:
    """B^T d."""
    found = [b.total((1.0, d[0]), (-1.0, d[6]), (5.25, b.total((1.0, d[4]), (-1.0, d[2]))))]
    for a in _PAIRS:
        x, y = sum(_SQUARES[a]), math.prod(_SQUARES[a])
        even = b.total((1.0, d[6]), (-x, d[4]), (y, d[2]))
        found += b.both(even, b.total((a, d[5]), (-x * a, d[3]), (y * a, d[1])))
    return [*found, b.total((1.0, d[7]), (-1.0, d[1]), (5.25, b.total((1.0, d[3]), (-1.0, d[5]))))]


def _from_points(b: _Builder, z: Sequence[Any]) -> Vectors:
    """B z."""
    pairs = {a: b.both(z[i], z[i + 1]) for a, i in zip(_PAIRS, (1, 3, 5), strict=True)}
    out = {i: [(sign, z[0])] for i, sign in zip((0, 2, 4, 6), (1.0, -5.25, 5.25, -1.0), strict=True)}
    out |= {i: [(sign, z[7])] for i, sign in zip((7, 5, 3, 1), (1.0, -5.25, 5.25, -1.0), strict=True)}
    for a, (even, odd) in pairs.items():
        for i, factor in zip((6, 4, 2), (1.0, -sum(_SQUARES[a]), math.prod(_SQUARES[a])), strict=True):
            out[i].append((factor, even))
            out[i - 1].append((factor * a, odd))
    return [b.total(*out[i]) for i in range(SPAN)]


def _scaled(b: _Builder, z: Sequence[Any]) -> Vectors:
    """What G is more than A."""
    return [b.total((scale, each)) for scale, each in zip(_SCALES, z, strict=True)]


def _raise(b: _Builder, g: Sequence[Any]) -> Vectors:
    """A g."""
    found = [g[0]]
    for a in _PAIRS:
        even, odd = (b.total(*((a**i, g[i]) for i in range(start, len(g), 2))) for start in (0, 1))
        found += b.both(even, odd)
    return [*found, g[-1]]


def _collect(b: _Builder, z: Sequence[Any], count: int = TILE) -> Vectors:
    """A^T z."""
    pairs = [(a, *b.both(z[i], z[i + 1])) for a, i in zip(_PAIRS, (1, 3, 5), strict=True)]
    out = [[(a**i, odd if i % 2 else even) for a, even, odd in pairs] for i in range(count)]
    out[0].append((1.0, z[0]))
    out[-1].append((1.0, z[7]))
    return [b.total(*terms) for terms in out]


def _filter(b: _Builder, w: Sequence[Any]) -> Vectors:
    """G w."""
    return _scaled(b, _raise(b, w))


def _unfilter(b: _Builder, z: Sequence[Any]) -> Vectors:
    """G^T z."""
    return _collect(b, _scaled(b, z), TAPS)


def _make(inputs: int, outputs: int, formula: Callable[[_Builder, Sequence[Any]], Vectors], add: bool = False) -> Any:
    """B[i] = (B[i] +) formula of A[0 ..], over runs of `length` floats that are `ar` and `br` apart."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        a, ao, ar, b, bo, br, length = args
        a, b = at_offset(context, builder, sig.args[0], a, ao), at_offset(context, builder, sig.args[3], b, bo)

        def visit(at: Any, run: Run) -> None:
            source, to = ([builder.gep(p, [builder.add(at, builder.mul(r, I64(i)))]) for i in range(n)]
                          for p, r, n in ((a, ar, inputs), (b, br, outputs)))  # fmt: skip
            found = formula(_Builder(builder), [run.load(p, 0) for p in source])
            for p, value in zip(to, found, strict=True):
                run.store(builder.fadd(run.load(p, 0), value) if add else value, p, 0)

        whole = builder.sdiv(length, I64(LANES))
        with cgutils.for_range(builder, whole) as j:
            visit(builder.mul(j.index, I64(LANES)), Run(builder))
        done = builder.mul(whole, I64(LANES))
        left = builder.sub(length, done)
        with builder.if_then(builder.icmp_signed(">", left, I64(0))):
            visit(done, Run(builder, left))
        return context.get_dummy_value()

    @intrinsic  # type: ignore[untyped-decorator]
    def tile(typing: Any, a: Any, ao: Any, ar: Any, b: Any, bo: Any, br: Any, length: Any) -> Any:
        return types.void(a, N, N, b, N, N, N), codegen

    return tile


at_points = _make(SPAN, SPAN, _at_points)
from_points = _make(SPAN, SPAN, _from_points, add=True)
powers, collected = _make(TILE, SPAN, _raise), _make(SPAN, TILE, _collect)
filtered, unfiltered = _make(TAPS, SPAN, _filter), _make(SPAN, TAPS, _unfilter)
