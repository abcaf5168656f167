"""Micro-kernels: what the inner loops are made of, written as LLVM vector code that Numba inlines.

Loops written in Python and left to LLVM's auto-vectoriser reach a good part of the machine only when accumulators
may live in memory. Here the accumulators are vector registers by construction:

    panel  m rows of C += A B over a run of contiguous floats, reduced over (channel, ky, kx): convolution forward and
           backward, and matrix products. Twelve accumulators of LANES floats, one broadcast per row and tap.

All offsets and strides are in elements. Tiles may touch up to SLACK floats past a run, and leave them as they were:
what is written to carries that much slack. No flag here allows the compiler to assume that NaN does not occur.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

# 16 floats on AVX-512, else 8: one AVX2 register, or two NEON ones (which has twice as many).
LANES: int = 16 if llvm.get_host_cpu_features().get("avx512f", False) else 8
# Rows of a panel and vectors per row: twelve accumulators hide the latency of a multiply-add and fit 16 registers.
VECTORS = {4: 3, 3: 4, 2: 4, 1: 8}

# What a tile may touch behind a run: one of a single row is up to eight vectors wide.
SLACK = 8 * LANES

# Sizes of the tile at the end of a run.
_ENDS = {4: (1, 2, 3), 3: (1, 2, 3, 4), 2: (1, 2, 4), 1: (2, 8)}

F32, I8, I32, I64 = ir.FloatType(), ir.IntType(8), ir.IntType(32), ir.IntType(64)
VEC, BYTES, INTS = (ir.VectorType(t, LANES) for t in (F32, I8, I32))
BITS = ir.VectorType(ir.IntType(1), LANES)
CONTRACT = ("contract",)  # a * b + c may be one instruction; nothing else is relaxed
N = types.intp
VOID = ir.VoidType()


def at_offset(context: Any, builder: Any, ty: Any, array: Any, offset: Any) -> Any:
    """Pointer to element `offset` of a contiguous array, or of what a pointer points to."""
    data = context.make_array(ty)(context, builder, array).data if isinstance(ty, types.Array) else array
    return builder.gep(data, [offset])


def step(builder: Any, pointer: Any, elements: Any) -> Any:
    """A pointer some elements further on."""
    return builder.gep(pointer, [I64(elements) if isinstance(elements, int) else elements])


def load(builder: Any, pointer: Any, vector: Any = VEC) -> Any:
    """A vector from an address that need not be aligned."""
    found = builder.load(builder.bitcast(pointer, vector.as_pointer()))
    found.align = vector.element.width // 8 if isinstance(vector.element, ir.IntType) else 4
    return found


def store(builder: Any, value: Any, pointer: Any) -> None:
    """A vector to an address that need not be aligned."""
    done = builder.store(value, builder.bitcast(pointer, value.type.as_pointer()))
    done.align = value.type.element.width // 8 if isinstance(value.type.element, ir.IntType) else 4


def splat(builder: Any, scalar: Any, vector: Any = VEC) -> Any:
    """One value in all lanes."""
    first = builder.insert_element(ir.Constant(vector, ir.Undefined), scalar, I32(0))
    return builder.shuffle_vector(first, ir.Constant(vector, ir.Undefined), ir.Constant(INTS, [0] * LANES))


def fma(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """a * b + c."""
    return builder.fadd(builder.fmul(a, b, flags=CONTRACT), c, flags=CONTRACT)


def _opaque(builder: Any, value: Any) -> Any:
    """The same value, of which LLVM knows nothing: else it makes a chain of additions of six addresses."""
    return builder.asm(ir.FunctionType(I64, [I64]), "", "=r,0", [value], side_effect=False)


class _KeepRolled(ir.values.MDValue):  # type: ignore[misc]
    """The mark of a loop that LLVM must not unroll; such marks name themselves first, which llvmlite cannot write."""

    def descr(self, buffer: Any) -> None:
        """Write the definition."""
        buffer += (f"distinct !{{ {self.get_reference()}, {self.operands[0].get_reference()} }}\n",)


def rolled(builder: Any, count: Any, body: Callable[[], None]) -> None:
    """Repeat, one round at a time: unrolled by LLVM, the loads of many rounds crowd out the accumulators."""
    inside = builder.append_basic_block("taps")
    behind = builder.append_basic_block("done")
    before = builder.block
    builder.cbranch(builder.icmp_signed(">", count, I64(0)), inside, behind)
    builder.position_at_end(inside)
    i = builder.phi(I64)
    i.add_incoming(I64(0), before)
    body()
    after = builder.add(i, I64(1))
    i.add_incoming(after, builder.block)
    back = builder.cbranch(builder.icmp_signed("<", after, count), inside, behind)
    disable = builder.module.add_metadata([ir.MetaDataString(builder.module, "llvm.loop.unroll.disable")])
    mark = _KeepRolled(builder.module, [disable], name=str(len(builder.module.metadata)))
    back.set_metadata("llvm.loop", mark)
    builder.position_at_end(behind)


class LaneRun:
    """How a tile meets memory: whole vectors, or only the first `left` floats; what lies behind is written back.

    Processors differ much in the cost of masked stores. Nobody else writes to a worker's buffers, so this is safe.
    """

    def __init__(self, builder: Any, left: Any = None) -> None:
        self._builder = builder
        self._left = left

    def load(self, pointer: Any, vector: int) -> Any:
        """Vector number `vector` of the tile's row."""
        return load(self._builder, step(self._builder, pointer, vector * LANES))

    def store(self, value: Any, pointer: Any, vector: int) -> None:
        """Put a vector back."""
        builder = self._builder
        place = step(builder, pointer, vector * LANES)
        if self._left is not None:
            lanes = ir.Constant(INTS, [vector * LANES + lane for lane in range(LANES)])
            inside = builder.icmp_signed("<", lanes, splat(builder, builder.trunc(self._left, I32), INTS))
            value = builder.select(inside, value, load(builder, place))
        store(builder, value, place)


def _tile(builder: Any, rows: int, vectors: int, at: Any, reach: dict[str, Any], run: LaneRun) -> None:
    """One tile: `rows` x `vectors` accumulators at position `at` of the run, reduced over channel, ky, kx."""
    g = reach
    grid = [(r, v) for r in range(rows) for v in range(vectors)]
    acc = {rv: cgutils.alloca_once(builder, VEC) for rv in grid}
    out = [builder.gep(g["c"], [builder.add(builder.mul(g["cr"], I64(r)), at)]) for r in range(rows)]
    with builder.if_else(g["add"]) as (again, fresh):
        with again:
            for r, v in grid:
                builder.store(run.load(out[r], v), acc[r, v])
        with fresh:
            for r in range(rows):
                start = splat(builder, builder.load(builder.gep(g["bias"], [builder.mul(g["ir"], I64(r))])))
                for v in range(vectors):
                    builder.store(start, acc[r, v])
    lead = [_opaque(builder, builder.mul(g["ar"], I64(r))) for r in range(rows)]
    a, b = (cgutils.alloca_once(builder, g[name].type) for name in ("a", "b"))

    def tap() -> None:
        left, right = builder.load(a), builder.load(b)
        if rows < vectors:
            scalars = [splat(builder, builder.load(builder.gep(left, [lead[r]]))) for r in range(rows)]
            for v in range(vectors):
                lanes = load(builder, step(builder, right, v * LANES))
                for r in range(rows):
                    builder.store(fma(builder, scalars[r], lanes, builder.load(acc[r, v])), acc[r, v])
        else:
            runs = [load(builder, step(builder, right, v * LANES)) for v in range(vectors)]
            for r in range(rows):
                scalar = splat(builder, builder.load(builder.gep(left, [lead[r]])))
                for v in range(vectors):
                    builder.store(fma(builder, scalar, runs[v], builder.load(acc[r, v])), acc[r, v])
        builder.store(builder.gep(left, [g["ax"]]), a)
        builder.store(builder.gep(right, [g["bx"]]), b)

    base = builder.gep(g["b"], [at])
    with cgutils.for_range(builder, g["nc"]) as c:
        a1, b1 = builder.mul(g["ac"], c.index), builder.mul(g["bc"], c.index)
        with cgutils.for_range(builder, g["ny"]) as y:
            builder.store(builder.gep(g["a"], [builder.add(a1, builder.mul(g["ay"], y.index))]), a)
            builder.store(builder.gep(base, [builder.add(b1, builder.mul(g["by"], y.index))]), b)
            rolled(builder, g["nx"], tap)
    for r, v in grid:
        run.store(builder.load(acc[r, v]), out[r], v)


_LEFT = ("c", "co", "cr", "a", "ao", "ar", "ac", "ay", "ax")
_PANEL = (*_LEFT, "b", "bo", "bc", "by", "bx", "nc", "ny", "nx", "bias", "io", "ir", "add", "length")


def _run_tiles(builder: Any, rows: int, g: dict[str, Any]) -> None:
    """Cover the run: wide tiles, and at its end one that is as wide as it must be and stops where the run stops.

    One vector alone is bound by the latency of its additions, so that a wide tile gives it one of its own.
    """
    wide, size = VECTORS[rows], g["length"]
    vectors = builder.sdiv(builder.add(size, I64(LANES - 1)), I64(LANES))
    whole = builder.sdiv(builder.sub(vectors, I64(1)), I64(wide))
    lonely = builder.icmp_signed("==", builder.sub(vectors, builder.mul(whole, I64(wide))), I64(1))
    split = builder.and_(lonely, builder.icmp_signed(">", whole, I64(0)))
    whole = builder.sub(whole, builder.zext(split, I64))
    with cgutils.for_range(builder, whole) as j:
        _tile(builder, rows, wide, builder.mul(j.index, I64(wide * LANES)), g, LaneRun(builder))
    done = cgutils.alloca_once_value(builder, builder.mul(whole, I64(wide * LANES)))
    with builder.if_then(split):
        _tile(builder, rows, wide - 1, builder.load(done), g, LaneRun(builder))
        builder.store(builder.add(builder.load(done), I64((wide - 1) * LANES)), done)
    at = builder.load(done)
    left = builder.sub(size, at)
    for fewer, count in pairwise((0, *_ENDS[rows])):
        more = builder.icmp_signed(">", left, I64(fewer * LANES))
        with builder.if_then(builder.and_(more, builder.icmp_signed("<=", left, I64(count * LANES)))):
            _tile(builder, rows, count, at, g, LaneRun(builder, left))


def _make_panel(rows: int) -> Callable[..., None]:
    """C[r][j] = (C[r][j] if add else bias[r]) + sum over (c, y, x) of A[r, c, y, x] * B[c, y, x][j], j < length."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        g = dict(zip(_PANEL, args, strict=True))
        kinds = dict(zip(_PANEL, sig.args, strict=True))
        for name, offset in (("c", "co"), ("a", "ao"), ("b", "bo"), ("bias", "io")):
            g[name] = at_offset(context, builder, kinds[name], g[name], g[offset])
        _run_tiles(builder, rows, g)
        return context.get_dummy_value()

    @intrinsic  # type: ignore[untyped-decorator]
    def panel(
        typing: Any, c: Any, co: Any, cr: Any, a: Any, ao: Any, ar: Any, ac: Any, ay: Any, ax: Any, b: Any, bo: Any,
        bc: Any, by: Any, bx: Any, nc: Any, ny: Any, nx: Any, bias: Any, io: Any, ir: Any, add: Any, length: Any,
    ) -> Any:  # fmt: skip
        taken = (c, N, N, a, N, N, N, N, N, b, N, N, N, N, N, N, N, bias, N, N, types.boolean, N)
        return types.void(*taken), codegen

    return panel  # type: ignore[no-any-return]


panel4, panel3, panel2, panel1 = (_make_panel(rows) for rows in (4, 3, 2, 1))


def make_call(pointers: dict[int, Any], count: int) -> Callable[..., Any]:
    """The code that calls a compiled function by its address, arrays going in as pointers to these kinds."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        kinds = [ir.PointerType(pointers[i]) if i in pointers else I64 for i in range(count)]
        function = builder.inttoptr(args[0], ir.FunctionType(VOID, kinds).as_pointer())
        given = [
            at_offset(context, builder, sig.args[i + 1], args[i + 1], I64(0)) if i in pointers else args[i + 1]
            for i in range(count)
        ]
        builder.call(function, given)
        return context.get_dummy_value()

    return codegen


_CALL_PANELS = make_call(dict.fromkeys((1, 4, 10, 18), F32), 23)
_CALL_TAPS = make_call({2: F32, 4: F32, 7: I64, 8: F32}, 11)


@intrinsic  # type: ignore[untyped-decorator]
def call_panels(
    typing: Any, address: Any, rows: Any, c: Any, co: Any, cr: Any, a: Any, ao: Any, ar: Any, ac: Any, ay: Any, ax: Any,
    b: Any, bo: Any, bc: Any, by: Any, bx: Any, nc: Any, ny: Any, nx: Any, bias: Any, io: Any, ir: Any, add: Any,
    length: Any,
) -> Any:  # fmt: skip
    """Call `panels` (compiled once, however many places use it)."""
    taken = (c, N, N, a, N, N, N, N, N, b, N, N, N, N, N, N, N, bias, N, N, N, N)
    return types.void(N, N, *taken), _CALL_PANELS


@intrinsic  # type: ignore[untyped-decorator]
def call_taps(
    typing: Any, address: Any, k: Any, vectors: Any, g: Any, go: Any, x: Any, xo: Any, line: Any, place: Any,
    value: Any, lo: Any, count: Any,
) -> Any:  # fmt: skip
    """Call `gather_taps` or `spread_taps`."""
    return types.void(N, N, N, g, N, x, N, N, place, value, N, N), _CALL_TAPS
