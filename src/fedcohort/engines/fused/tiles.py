"""Micro-kernels of convolutions with fewer multiplications (Toom and Cook, Winograd), along one axis.

    A. Lavin, S. Gray: Fast algorithms for convolutional neural networks. CVPR 2016.

A filter w of k taps over n = k + 3 inputs d gives a tile of 4 outputs y. Taken as polynomials, all of them are known by
their values at n points (0, +-1, +-2, with five taps +-1/2 too, and infinity), where a convolution is one product each:

    y  = A^T [(G w) * (B^T d)]      n products instead of 4 k: 8 of 20, or 6 of 12                               (1)
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

from .vectors import CONTRACT, I64, LANES, VEC, LaneRun, N, at_offset

TILE = 4  # outputs
PAIRS = {3: (1.0, 2.0), 5: (1.0, 2.0, 0.5)}  # points other than 0 and infinity, by number of taps: each with both signs

Vectors = list[Any]
Formula = Callable[["_TileBuilder", Sequence[Any]], Vectors]


def _product(pairs: Sequence[float]) -> list[float]:
    """Coefficients, lowest first, of the product of (z - a^2), a polynomial in z = x^2."""
    found = [1.0]
    for a in pairs:
        found = [low - a * a * high for low, high in zip([0.0, *found], [*found, 0.0], strict=True)]
    return found


class _TileBuilder:
    """Sums of vectors with constant factors."""

    def __init__(self, builder: Any) -> None:
        self.builder = builder

    def total(self, *terms: tuple[float, Any]) -> Any:
        """Sum of factor * vector; terms without a factor come first."""
        found = None
        for factor, vector in sorted(terms, key=lambda term: term[0] != 1.0):
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


class _Points:
    """The transformations of filters with so many taps."""

    def __init__(self, taps: int) -> None:
        self.taps = taps
        self.pairs = PAIRS[taps]
        self.span = taps + TILE - 1  # inputs, and points
        self.whole = _product(self.pairs)
        self.without = {a: _product([b for b in self.pairs if b != a]) for a in self.pairs}

    def at_points(self, b: _TileBuilder, d: Sequence[Any]) -> Vectors:
        """B^T d."""
        found = [b.total(*((c, d[2 * i]) for i, c in enumerate(self.whole)))]
        for a in self.pairs:
            even = b.total(*((c, d[2 * i + 2]) for i, c in enumerate(self.without[a])))
            found += b.both(even, b.total(*((a * c, d[2 * i + 1]) for i, c in enumerate(self.without[a]))))
        return [*found, b.total(*((c, d[2 * i + 1]) for i, c in enumerate(self.whole)))]

    def from_points(self, b: _TileBuilder, z: Sequence[Any]) -> Vectors:
        """B z."""
        out: list[list[tuple[float, Any]]] = [[] for _ in range(self.span)]
        for i, c in enumerate(self.whole):
            out[2 * i].append((c, z[0]))
            out[2 * i + 1].append((c, z[-1]))
        for a, even, odd in self._halves(b, z):
            for i, c in enumerate(self.without[a]):
                out[2 * i + 2].append((c, even))
                out[2 * i + 1].append((a * c, odd))
        return [b.total(*terms) for terms in out]

    def powers(self, b: _TileBuilder, g: Sequence[Any]) -> Vectors:
        """A g."""
        found = [g[0]]
        for a in self.pairs:
            even, odd = (b.total(*((a**i, g[i]) for i in range(start, len(g), 2))) for start in (0, 1))
            found += b.both(even, odd)
        return [*found, g[-1]]

    def collected(self, b: _TileBuilder, z: Sequence[Any], count: int = TILE) -> Vectors:
        """A^T z."""
        halves = self._halves(b, z)
        out = [[(a**i, odd if i % 2 else even) for a, even, odd in halves] for i in range(count)]
        out[0].append((1.0, z[0]))
        out[-1].append((1.0, z[-1]))
        return [b.total(*terms) for terms in out]

    def filtered(self, b: _TileBuilder, w: Sequence[Any]) -> Vectors:
        """G w."""
        return self._divided(b, self.powers(b, w))

    def unfiltered(self, b: _TileBuilder, z: Sequence[Any]) -> Vectors:
        """G^T z."""
        return self.collected(b, self._divided(b, z), self.taps)

    def _halves(self, b: _TileBuilder, z: Sequence[Any]) -> list[tuple[float, Any, Any]]:
        """For each pair the sum of its two values and their difference."""
        return [(a, *b.both(z[2 * i + 1], z[2 * i + 2])) for i, a in enumerate(self.pairs)]

    def _divided(self, b: _TileBuilder, z: Sequence[Any]) -> Vectors:
        """By the product of each point's distances from the others."""
        points = [0.0, *(sign * a for a in self.pairs for sign in (1, -1))]
        far = [math.prod(here - other for other in points if other != here) for here in points]
        return [b.total((1.0 / each, vector)) for each, vector in zip([*far, 1.0], z, strict=True)]


def _make(inputs: int, outputs: int, formula: Formula, add: bool = False) -> Any:
    """B[i] = (B[i] +) formula of A[0 ..], over runs of `length` floats that are `ar` and `br` apart."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        a, ao, ar, b, bo, br, length = args
        a, b = at_offset(context, builder, sig.args[0], a, ao), at_offset(context, builder, sig.args[3], b, bo)

        def visit(at: Any, run: LaneRun) -> None:
            source, to = ([builder.gep(p, [builder.add(at, builder.mul(r, I64(i)))]) for i in range(n)]
                          for p, r, n in ((a, ar, inputs), (b, br, outputs)))  # fmt: skip
            found = formula(_TileBuilder(builder), [run.load(p, 0) for p in source])
            for p, value in zip(to, found, strict=True):
                run.store(builder.fadd(run.load(p, 0), value) if add else value, p, 0)

        whole = builder.sdiv(length, I64(LANES))
        with cgutils.for_range(builder, whole) as j:
            visit(builder.mul(j.index, I64(LANES)), LaneRun(builder))
        done = builder.mul(whole, I64(LANES))
        left = builder.sub(length, done)
        with builder.if_then(builder.icmp_signed(">", left, I64(0))):
            visit(done, LaneRun(builder, left))
        return context.get_dummy_value()

    @intrinsic  # type: ignore[untyped-decorator]
    def tile(typing: Any, a: Any, ao: Any, ar: Any, b: Any, bo: Any, br: Any, length: Any) -> Any:
        return types.void(a, N, N, b, N, N, N), codegen

    return tile


_THREE, _FIVE = _Points(3), _Points(5)
at_points3, at_points5 = (_make(p.span, p.span, p.at_points) for p in (_THREE, _FIVE))
from_points3, from_points5 = (_make(p.span, p.span, p.from_points, add=True) for p in (_THREE, _FIVE))
powers3, powers5 = (_make(TILE, p.span, p.powers) for p in (_THREE, _FIVE))
collected3, collected5 = (_make(p.span, TILE, p.collected) for p in (_THREE, _FIVE))
filtered3, filtered5 = (_make(p.taps, p.span, p.filtered) for p in (_THREE, _FIVE))
unfiltered3, unfiltered5 = (_make(p.span, p.taps, p.unfiltered) for p in (_THREE, _FIVE))
