"""Micro-kernels: what the inner loops are made of, written as LLVM vector code that Numba inlines.

Loops written in Python and left to LLVM's auto-vectoriser reach a good part of the machine only when accumulators
may live in memory. Here the accumulators are vector registers by construction:

    panel  m rows of C += A B over a run of contiguous floats, reduced over (channel, ky, kx): convolution forward and
           backward, and matrix products. Twelve accumulators of LANES floats, one broadcast per row and tap.
    dots   m rows times t taps of lane-wise dot products: the weight gradient of a convolution.
    pool   maximum over a window, its position, and ReLU, a vector of samples at a time; `unpool` is its transpose.

All offsets and strides are in elements. Reads may run up to LANES floats past a run (buffers carry slack); writes
never do. No flag here allows the compiler to assume that NaN does not occur.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

# 16 floats on AVX-512, else 8: one AVX2 register, or two NEON ones (which has twice as many).
LANES: int = 16 if llvm.get_host_cpu_features().get("avx512f", False) else 8
# Rows of a panel and vectors per row: twelve accumulators hide the latency of a multiply-add and fit 16 registers.
VECTORS = {6: 2, 4: 3, 3: 3, 2: 4, 1: 8}

_F32, _I8, _I32, _I64 = ir.FloatType(), ir.IntType(8), ir.IntType(32), ir.IntType(64)
_VEC, _BYTES, _INTS = (ir.VectorType(t, LANES) for t in (_F32, _I8, _I32))
_BITS = ir.VectorType(ir.IntType(1), LANES)
_CONTRACT = ("contract",)  # a * b + c may be one instruction; nothing else is relaxed
_N = types.intp


def _at(context: Any, builder: Any, ty: Any, array: Any, offset: Any) -> Any:
    """Pointer to element `offset` of a contiguous array, or of what a pointer points to."""
    data = context.make_array(ty)(context, builder, array).data if isinstance(ty, types.Array) else array
    return builder.gep(data, [offset])


def _step(builder: Any, pointer: Any, elements: Any) -> Any:
    return builder.gep(pointer, [_I64(elements) if isinstance(elements, int) else elements])


def _load(builder: Any, pointer: Any, vector: Any = _VEC) -> Any:
    found = builder.load(builder.bitcast(pointer, vector.as_pointer()))
    found.align = vector.element.width // 8 if isinstance(vector.element, ir.IntType) else 4
    return found


def _store(builder: Any, value: Any, pointer: Any) -> None:
    done = builder.store(value, builder.bitcast(pointer, value.type.as_pointer()))
    done.align = value.type.element.width // 8 if isinstance(value.type.element, ir.IntType) else 4


def _splat(builder: Any, scalar: Any, vector: Any = _VEC) -> Any:
    first = builder.insert_element(ir.Constant(vector, ir.Undefined), scalar, _I32(0))
    return builder.shuffle_vector(first, ir.Constant(vector, ir.Undefined), ir.Constant(_INTS, [0] * LANES))


def _fma(builder: Any, a: Any, b: Any, c: Any) -> Any:
    return builder.fadd(builder.fmul(a, b, flags=_CONTRACT), c, flags=_CONTRACT)


def _masked(builder: Any, name: str, result: Any, arguments: list[Any]) -> Any:
    pointer = arguments[0].type if result is not _VOID else arguments[1].type
    typed = f"llvm.masked.{name}.v{LANES}f32.p0"
    kinds = [_VEC, pointer, _I32, _BITS] if result is _VOID else [pointer, _I32, _BITS, _VEC]
    function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(result, kinds), typed)
    return builder.call(function, arguments)


_VOID = ir.VoidType()


class _Run:
    """How a tile meets memory: whole vectors, or only the first `left` floats of the tile."""

    def __init__(self, builder: Any, left: Any = None) -> None:
        self._builder = builder
        self._left = left

    def _mask(self, vector: int) -> Any:
        lanes = ir.Constant(_INTS, [vector * LANES + lane for lane in range(LANES)])
        bound = _splat(self._builder, self._builder.trunc(self._left, _I32), _INTS)
        return self._builder.icmp_signed("<", lanes, bound)

    def load(self, pointer: Any, vector: int) -> Any:
        place = _step(self._builder, pointer, vector * LANES)
        if self._left is None:
            return _load(self._builder, place)
        place = self._builder.bitcast(place, _VEC.as_pointer())
        zero = ir.Constant(_VEC, [0.0] * LANES)
        return _masked(self._builder, "load", _VEC, [place, _I32(4), self._mask(vector), zero])

    def store(self, value: Any, pointer: Any, vector: int) -> None:
        place = _step(self._builder, pointer, vector * LANES)
        if self._left is None:
            _store(self._builder, value, place)
        else:
            place = self._builder.bitcast(place, _VEC.as_pointer())
            _masked(self._builder, "store", _VOID, [value, place, _I32(4), self._mask(vector)])


def _tile(builder: Any, rows: int, vectors: int, at: Any, reach: dict[str, Any], run: _Run) -> None:
    """One tile: `rows` x `vectors` accumulators at position `at` of the run, reduced over channel, ky, kx."""
    g = reach
    grid = [(r, v) for r in range(rows) for v in range(vectors)]
    acc = {rv: cgutils.alloca_once(builder, _VEC) for rv in grid}
    out = [builder.gep(g["c"], [builder.add(builder.mul(g["cr"], _I64(r)), at)]) for r in range(rows)]
    with builder.if_else(g["add"]) as (again, fresh):
        with again:
            for r, v in grid:
                builder.store(run.load(out[r], v), acc[r, v])
        with fresh:
            for r in range(rows):
                start = _splat(builder, builder.load(builder.gep(g["bias"], [builder.mul(g["ir"], _I64(r))])))
                for v in range(vectors):
                    builder.store(start, acc[r, v])
    lead = [builder.mul(g["ar"], _I64(r)) for r in range(rows)]
    base = builder.gep(g["b"], [at])
    with cgutils.for_range(builder, g["nc"]) as c:
        a1, b1 = builder.mul(g["ac"], c.index), builder.mul(g["bc"], c.index)
        with cgutils.for_range(builder, g["ny"]) as y:
            a2 = builder.add(a1, builder.mul(g["ay"], y.index))
            b2 = builder.add(b1, builder.mul(g["by"], y.index))
            with cgutils.for_range(builder, g["nx"]) as x:
                a3 = builder.add(a2, builder.mul(g["ax"], x.index))
                row = builder.gep(base, [builder.add(b2, builder.mul(g["bx"], x.index))])
                b = [_load(builder, _step(builder, row, v * LANES)) for v in range(vectors)]
                for r in range(rows):
                    tap = _splat(builder, builder.load(builder.gep(g["a"], [builder.add(a3, lead[r])])))
                    for v in range(vectors):
                        builder.store(_fma(builder, tap, b[v], builder.load(acc[r, v])), acc[r, v])
    for r, v in grid:
        run.store(builder.load(acc[r, v]), out[r], v)


_PANEL = ("c", "co", "cr", "a", "ao", "ar", "ac", "ay", "ax", "b", "bo", "bc", "by", "bx", "nc", "ny", "nx")
_PANEL += ("bias", "io", "ir", "add", "length")


def _make_panel(rows: int) -> Callable[..., None]:
    """C[r][j] = (C[r][j] if add else bias[r]) + sum over (c, y, x) of A[r, c, y, x] * B[c, y, x][j], j < length."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        g = dict(zip(_PANEL, args, strict=True))
        kinds = dict(zip(_PANEL, sig.args, strict=True))
        for name, offset in (("c", "co"), ("a", "ao"), ("b", "bo"), ("bias", "io")):
            g[name] = _at(context, builder, kinds[name], g[name], g[offset])
        wide = VECTORS[rows]
        whole = builder.sdiv(g["length"], _I64(wide * LANES))
        with cgutils.for_range(builder, whole) as j:
            _tile(builder, rows, wide, builder.mul(j.index, _I64(wide * LANES)), g, _Run(builder))
        done = builder.mul(whole, _I64(wide * LANES))
        left = builder.sub(g["length"], done)
        with builder.if_then(builder.icmp_signed(">", left, _I64(0))):
            many = builder.icmp_signed(">", left, _I64(LANES))
            with builder.if_else(many) as (wider, single):
                with wider:
                    _tile(builder, rows, wide, done, g, _Run(builder, left))
                with single:
                    _tile(builder, rows, 1, done, g, _Run(builder, left))
        return context.get_dummy_value()

    @intrinsic  # type: ignore[untyped-decorator]
    def panel(
        typing: Any, c: Any, co: Any, cr: Any, a: Any, ao: Any, ar: Any, ac: Any, ay: Any, ax: Any, b: Any, bo: Any,
        bc: Any, by: Any, bx: Any, nc: Any, ny: Any, nx: Any, bias: Any, io: Any, ir: Any, add: Any, length: Any,
    ) -> Any:  # fmt: skip
        taken = (c, _N, _N, a, _N, _N, _N, _N, _N, b, _N, _N, _N, _N, _N, _N, _N, bias, _N, _N, types.boolean, _N)
        return types.void(*taken), codegen

    return panel  # type: ignore[no-any-return]


def _make_dots(rows: int, taps: int) -> Callable[..., None]:
    """G[r][t][lane] += sum over i of D[r][i] * B[t][i], i < vectors * LANES with i = lane modulo LANES."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        g, go, gr, d, do, dr, b, bo, bt, vectors = args
        g = _at(context, builder, sig.args[0], g, go)
        d = _at(context, builder, sig.args[3], d, do)
        b = _at(context, builder, sig.args[6], b, bo)
        grid = [(r, t) for r in range(rows) for t in range(taps)]
        acc = {rt: cgutils.alloca_once(builder, _VEC) for rt in grid}
        place = {(r, t): builder.gep(g, [builder.add(builder.mul(gr, _I64(r)), _I64(t * LANES))]) for r, t in grid}
        for rt in grid:
            builder.store(_load(builder, place[rt]), acc[rt])
        left = [builder.gep(d, [builder.mul(dr, _I64(r))]) for r in range(rows)]
        right = [builder.gep(b, [builder.mul(bt, _I64(t))]) for t in range(taps)]
        with cgutils.for_range(builder, vectors) as i:
            at = builder.mul(i.index, _I64(LANES))
            rowed = [_load(builder, builder.gep(p, [at])) for p in left]
            for t in range(taps):
                tap = _load(builder, builder.gep(right[t], [at]))
                for r in range(rows):
                    builder.store(_fma(builder, rowed[r], tap, builder.load(acc[r, t])), acc[r, t])
        for rt in grid:
            _store(builder, builder.load(acc[rt]), place[rt])
        return context.get_dummy_value()

    @intrinsic  # type: ignore[untyped-decorator]
    def dots(
        typing: Any, g: Any, go: Any, gr: Any, d: Any, do: Any, dr: Any, b: Any, bo: Any, bt: Any, vectors: Any
    ) -> Any:
        return types.void(g, _N, _N, d, _N, _N, b, _N, _N, _N), codegen

    return dots  # type: ignore[no-any-return]


panel6, panel4, panel3, panel2, panel1 = (_make_panel(rows) for rows in (6, 4, 3, 2, 1))
dots25, dots15 = _make_dots(2, 5), _make_dots(1, 5)
dots43, dots23, dots13 = _make_dots(4, 3), _make_dots(2, 3), _make_dots(1, 3)
dots41, dots21, dots11 = _make_dots(4, 1), _make_dots(2, 1), _make_dots(1, 1)


def _sample_vectors(builder: Any, samples: Any) -> tuple[Any, Callable[[Any], Any]]:
    """Vectors that cover the samples, and where the i-th starts: the last overlaps instead of overhanging."""
    count = builder.sdiv(builder.add(samples, _I64(LANES - 1)), _I64(LANES))
    last = builder.sub(samples, _I64(LANES))

    def start(i: Any) -> Any:
        at = builder.mul(i, _I64(LANES))
        return builder.select(builder.icmp_signed("<", at, last), at, last)

    return count, start


def _over_window(builder: Any, size: Any, visit: Callable[[Any, Any], None]) -> None:
    """Visit every (y, x) of a window; the common 2 x 2 is unrolled."""
    with builder.if_else(builder.icmp_signed("==", size, _I64(2))) as (two, other):
        with two:
            for y in range(2):
                for x in range(2):
                    visit(_I64(y), _I64(x))
        with other, cgutils.for_range(builder, size) as y, cgutils.for_range(builder, size) as x:
            visit(y.index, x.index)


@intrinsic  # type: ignore[untyped-decorator]
def pool(
    typing: Any, r: Any, ro: Any, row: Any, size: Any, samples: Any, relu: Any, out: Any, oo: Any, at: Any, ao: Any
) -> Any:
    """Maximum of a size x size window of rows `r`, then ReLU; `at` keeps the winner's position, -1 where cut to 0."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        r, ro, row, size, samples, relu, out, oo, at, ao = args
        r = _at(context, builder, sig.args[0], r, ro)
        out = _at(context, builder, sig.args[6], out, oo)
        at = _at(context, builder, sig.args[8], at, ao)
        best, where = cgutils.alloca_once(builder, _VEC), cgutils.alloca_once(builder, _INTS)
        count, start = _sample_vectors(builder, samples)
        with cgutils.for_range(builder, count) as i:
            s = start(i.index)
            builder.store(_load(builder, builder.gep(r, [s])), best)
            builder.store(ir.Constant(_INTS, [0] * LANES), where)

            def visit(y: Any, x: Any) -> None:
                place = builder.add(builder.add(builder.mul(y, row), builder.mul(x, samples)), s)
                value = _load(builder, builder.gep(r, [place]))
                higher = builder.fcmp_ordered(">", value, builder.load(best))
                here = _splat(builder, builder.trunc(builder.add(builder.mul(y, size), x), _I32), _INTS)
                builder.store(builder.select(higher, value, builder.load(best)), best)
                builder.store(builder.select(higher, here, builder.load(where)), where)

            _over_window(builder, size, visit)
            value, zero = builder.load(best), ir.Constant(_VEC, [0.0] * LANES)
            cut = builder.and_(builder.fcmp_ordered("<=", value, zero), _splat(builder, relu, _BITS))
            _store(builder, builder.select(cut, zero, value), builder.gep(out, [s]))
            kept = builder.select(cut, ir.Constant(_INTS, [-1] * LANES), builder.load(where))
            _store(builder, builder.trunc(kept, _BYTES), builder.gep(at, [s]))
        return context.get_dummy_value()

    return types.void(r, _N, _N, _N, _N, types.boolean, out, _N, at, _N), codegen


@intrinsic  # type: ignore[untyped-decorator]
def unpool(typing: Any, d: Any, do: Any, row: Any, size: Any, samples: Any, up: Any, uo: Any, at: Any, ao: Any) -> Any:
    """Give each gradient `up` to the position that won, 0 to the rest of the window in rows `d`."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        d, do, row, size, samples, up, uo, at, ao = args
        d = _at(context, builder, sig.args[0], d, do)
        up = _at(context, builder, sig.args[5], up, uo)
        at = _at(context, builder, sig.args[7], at, ao)
        count, start = _sample_vectors(builder, samples)
        with cgutils.for_range(builder, count) as i:
            s = start(i.index)
            gradient = _load(builder, builder.gep(up, [s]))
            winner = builder.sext(_load(builder, builder.gep(at, [s]), _BYTES), _INTS)

            def visit(y: Any, x: Any) -> None:
                here = _splat(builder, builder.trunc(builder.add(builder.mul(y, size), x), _I32), _INTS)
                won = builder.icmp_signed("==", winner, here)
                place = builder.add(builder.add(builder.mul(y, row), builder.mul(x, samples)), s)
                value = builder.select(won, gradient, ir.Constant(_VEC, [0.0] * LANES))
                _store(builder, value, builder.gep(d, [place]))

            _over_window(builder, size, visit)
        return context.get_dummy_value()

    return types.void(d, _N, _N, _N, _N, up, _N, at, _N), codegen


def _shuffled(builder: Any, a: Any, b: Any, order: list[int]) -> Any:
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(_I32, 8), order))


@intrinsic  # type: ignore[untyped-decorator]
def turn8(typing: Any, a: Any, offsets: Any, first: Any, f: Any, b: Any, bo: Any, br: Any) -> Any:
    """Transpose 8 x 8: B[bo + j * br + i] = A[offsets[first + i] + f + j]."""
    eight = ir.VectorType(_F32, 8)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        a, offsets, first, f, b, bo, br = args
        offsets = _at(context, builder, sig.args[1], offsets, first)
        rows = []
        for i in range(8):
            start = builder.add(builder.load(_step(builder, offsets, i)), f)
            rows.append(_load(builder, _at(context, builder, sig.args[0], a, start), eight))
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
            place = builder.add(bo, builder.mul(br, _I64(j)))
            _store(builder, rows[j], _at(context, builder, sig.args[4], b, place))
        return context.get_dummy_value()

    return types.void(a, offsets, _N, _N, b, _N, _N), codegen


@intrinsic  # type: ignore[untyped-decorator]
def lane_sum(typing: Any, a: Any, offset: Any) -> Any:
    """Sum of LANES floats, halves added to each other."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        total = _load(builder, _at(context, builder, sig.args[0], *args))
        half = LANES // 2
        while half:
            order = [(i + half) % LANES for i in range(LANES)]
            moved = builder.shuffle_vector(total, ir.Constant(_VEC, ir.Undefined), ir.Constant(_INTS, order))
            total = builder.fadd(total, moved)
            half //= 2
        return builder.extract_element(total, _I32(0))

    return types.float32(a, _N), codegen


@intrinsic  # type: ignore[untyped-decorator]
def power_of_two(typing: Any, exponent: Any) -> Any:
    """2 ** exponent for an int32 in [-126, 127], as float32."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        biased = builder.shl(builder.add(args[0], _I32(127)), _I32(23))
        return builder.bitcast(biased, _F32)

    return types.float32(types.int32), codegen


def _make_call(pointers: frozenset[int], count: int) -> Callable[..., Any]:
    """The code that calls a compiled function by its address, arrays going in as pointers."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        kinds = [ir.PointerType(_F32) if i in pointers else _I64 for i in range(count)]
        function = builder.inttoptr(args[0], ir.FunctionType(_VOID, kinds).as_pointer())
        given = [
            _at(context, builder, sig.args[i + 1], args[i + 1], _I64(0)) if i in pointers else args[i + 1]
            for i in range(count)
        ]
        builder.call(function, given)
        return context.get_dummy_value()

    return codegen


_CALL_PANELS = _make_call(frozenset((1, 4, 10, 18)), 23)
_CALL_DOTS = _make_call(frozenset((2, 5, 8)), 12)


@intrinsic  # type: ignore[untyped-decorator]
def call_panels(
    typing: Any, address: Any, rows: Any, c: Any, co: Any, cr: Any, a: Any, ao: Any, ar: Any, ac: Any, ay: Any, ax: Any,
    b: Any, bo: Any, bc: Any, by: Any, bx: Any, nc: Any, ny: Any, nx: Any, bias: Any, io: Any, ir: Any, add: Any,
    length: Any,
) -> Any:  # fmt: skip
    """Call `panels` (compiled once, however many places use it)."""
    taken = (c, _N, _N, a, _N, _N, _N, _N, _N, b, _N, _N, _N, _N, _N, _N, _N, bias, _N, _N, _N, _N)
    return types.void(_N, _N, *taken), _CALL_PANELS


@intrinsic  # type: ignore[untyped-decorator]
def call_dots(
    typing: Any, address: Any, rows: Any, taps: Any, g: Any, go: Any, gr: Any, d: Any, do: Any, dr: Any, b: Any,
    bo: Any, bt: Any, n: Any,
) -> Any:  # fmt: skip
    """Call `dot_rows`."""
    return types.void(_N, _N, _N, g, _N, _N, d, _N, _N, b, _N, _N, _N), _CALL_DOTS
