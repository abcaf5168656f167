"""Micro-kernels on samples: pooling, transposition of 8 x 8 tiles, powers of two."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .vectors import BITS, BYTES, F32, I32, I64, INTS, LANES, VEC, N, at_offset, load, splat, step, store


def _sample_vectors(builder: Any, samples: Any) -> tuple[Any, Callable[[Any], Any]]:
    """Vectors that cover the samples, and where the i-th starts: the last overlaps instead of overhanging."""
    count = builder.sdiv(builder.add(samples, I64(LANES - 1)), I64(LANES))
    last = builder.sub(samples, I64(LANES))

    def start(i: Any) -> Any:
        at = builder.mul(i, I64(LANES))
        return builder.select(builder.icmp_signed("<", at, last), at, last)

    return count, start


def _over_window(builder: Any, size: Any, visit: Callable[[Any, Any], None]) -> None:
    """Visit every (y, x) of a window; the common 2 x 2 is unrolled."""
    with builder.if_else(builder.icmp_signed("==", size, I64(2))) as (two, other):
        with two:
            for y in range(2):
                for x in range(2):
                    visit(I64(y), I64(x))
        with other, cgutils.for_range(builder, size) as y, cgutils.for_range(builder, size) as x:
            visit(y.index, x.index)


@intrinsic  # type: ignore[untyped-decorator]
def pool(
    typing: Any, r: Any, ro: Any, row: Any, size: Any, samples: Any, relu: Any, out: Any, oo: Any, at: Any, ao: Any
) -> Any:
    """Maximum of a size x size window of rows `r`, then ReLU; `at` keeps the winner's position, -1 where cut to 0."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        r, ro, row, size, samples, relu, out, oo, at, ao = args
        r = at_offset(context, builder, sig.args[0], r, ro)
        out = at_offset(context, builder, sig.args[6], out, oo)
        at = at_offset(context, builder, sig.args[8], at, ao)
        best, where = cgutils.alloca_once(builder, VEC), cgutils.alloca_once(builder, INTS)
        count, start = _sample_vectors(builder, samples)
        with cgutils.for_range(builder, count) as i:
            s = start(i.index)
            builder.store(load(builder, builder.gep(r, [s])), best)
            builder.store(ir.Constant(INTS, [0] * LANES), where)

            def visit(y: Any, x: Any) -> None:
                place = builder.add(builder.add(builder.mul(y, row), builder.mul(x, samples)), s)
                value = load(builder, builder.gep(r, [place]))
                higher = builder.fcmp_ordered(">", value, builder.load(best))
                here = splat(builder, builder.trunc(builder.add(builder.mul(y, size), x), I32), INTS)
                builder.store(builder.select(higher, value, builder.load(best)), best)
                builder.store(builder.select(higher, here, builder.load(where)), where)

            _over_window(builder, size, visit)
            value, zero = builder.load(best), ir.Constant(VEC, [0.0] * LANES)
            cut = builder.and_(builder.fcmp_ordered("<=", value, zero), splat(builder, relu, BITS))
            store(builder, builder.select(cut, zero, value), builder.gep(out, [s]))
            kept = builder.select(cut, ir.Constant(INTS, [-1] * LANES), builder.load(where))
            store(builder, builder.trunc(kept, BYTES), builder.gep(at, [s]))
        return context.get_dummy_value()

    return types.void(r, N, N, N, N, types.boolean, out, N, at, N), codegen


def _shuffled(builder: Any, a: Any, b: Any, order: list[int]) -> Any:
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(I32, 8), order))


@intrinsic  # type: ignore[untyped-decorator]
def turn8(typing: Any, a: Any, offsets: Any, first: Any, f: Any, b: Any, bo: Any, br: Any) -> Any:
    """Transpose 8 x 8: B[bo + j * br + i] = A[offsets[first + i] + f + j]."""
    eight = ir.VectorType(F32, 8)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        a, offsets, first, f, b, bo, br = args
        offsets = at_offset(context, builder, sig.args[1], offsets, first)
        rows = []
        for i in range(8):
            start = builder.add(builder.load(step(builder, offsets, i)), f)
            rows.append(load(builder, at_offset(context, builder, sig.args[0], a, start), eight))
        for gap, low, high in (
            (4, [0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15]),
            (2, [0, 1, 8, 9, 4, 5, 12, 13], [2, 3, 10, 11, 6, 7, 14, 15]),
            (1, [0, 8, 2, 10, 4, 12, 6, 14], [1, 9, 3, 11, 5, 13, 7, 15]),
        ):
            for i in range(8):
                if i & gap == 0:
                    x, y = rows[i], rows[i + gap]
                    rows[i], rows[i + gap] = _shuffled(builder, x, y, low), _shuffled(builder, x, y, high)
        for j in range(8):
            place = builder.add(bo, builder.mul(br, I64(j)))
            store(builder, rows[j], at_offset(context, builder, sig.args[4], b, place))
        return context.get_dummy_value()

    return types.void(a, offsets, N, N, b, N, N), codegen


@intrinsic  # type: ignore[untyped-decorator]
def power_of_two(typing: Any, exponent: Any) -> Any:
    """2 ** exponent for an int32 in [-126, 127], as float32."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        biased = builder.shl(builder.add(args[0], I32(127)), I32(23))
        return builder.bitcast(biased, F32)

    return types.float32(types.int32), codegen
