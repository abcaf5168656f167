"""Micro-kernels of the backward pass of a convolution, which visits only the places that won their pool.

Behind a max-pool and a ReLU at most one place of a window has a gradient. With one sample at a time and channels
innermost, the input under all taps of a place is `rows` runs of `vectors` whole vectors, so that a place costs as
many multiply-adds as the forward pass spends on it, and the places that lost cost nothing:

    compact_nonzero   the places of one output channel that won, and their gradients, without a branch
    gather  weight gradient: sum over the places of gradient times input; accumulators are registers
    spread  input gradient: at every place, add gradient times weights; weights are registers
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .vectors import I64, LANES, VEC, N, at_offset, fma, load, rolled, splat, step, store

# Rows at once for so many vectors a row: at most twelve accumulators.
SHAPES = {
    1: (5, 3, 2, 1),
    2: (5, 3, 2, 1),
    3: (3, 2, 1),
    4: (3, 2, 1),
    5: (2, 1),
    6: (2, 1),
    8: (1,),
    10: (1,),
    12: (1,),
}


@intrinsic  # type: ignore[untyped-decorator]
def compact_nonzero(
    typing: Any, winner: Any, wo: Any, further: Any, up: Any, uo: Any, grads: Any, corners: Any, within: Any, base: Any,
    count: Any, place: Any, value: Any, at: Any,
) -> Any:  # fmt: skip
    """Append place and gradient of every window p that has a winner, from position `at` on; where the list ends.

    Window p: winner[wo + further * p], up[uo + grads[p]], place base + corners[p] + within[winner + 1].
    """

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        starts = {0: args[1], 3: args[4]}
        arrays = (0, 3, 5, 6, 7, 10, 11)
        a = [at_offset(context, builder, sig.args[i], args[i], starts.get(i, I64(0))) for i in arrays]
        winner, up, grads, corners, within, place, value = a
        further, base, count, at = args[2], args[8], args[9], args[12]
        end, passing = (cgutils.alloca_once_value(builder, start) for start in (at, winner))
        with cgutils.for_range(builder, count) as p:
            won = builder.sext(builder.load(builder.load(passing)), I64)
            builder.store(builder.gep(builder.load(passing), [further]), passing)
            here = builder.load(end)
            corner, grad = (builder.load(builder.gep(table, [p.index])) for table in (corners, grads))
            spot = builder.add(corner, builder.load(builder.gep(within, [builder.add(won, I64(1))])))
            builder.store(builder.add(base, spot), builder.gep(place, [here]))
            builder.store(builder.load(builder.gep(up, [grad])), builder.gep(value, [here]))
            builder.store(builder.add(here, builder.zext(builder.icmp_signed(">=", won, I64(0)), I64)), end)
        return builder.load(end)

    return N(winner, N, N, up, N, grads, corners, within, N, N, place, value, N), codegen


def _gather(builder: Any, rows: int, vectors: int, a: dict[str, Any]) -> None:
    """G[y][v] += sum over the list of value * X[place + y * line + v], y in groups of `rows`, v < vectors * LANES.

    The sum of a list is made from zero, so that the chain of additions is no longer than a list. Few accumulators
    come twice: an addition waits four cycles for the one before it. Lists then have an even number of entries.
    """
    ways = 2 if rows * vectors <= 6 else 1
    grid = [(way, r, v) for way in range(ways) for r in range(rows) for v in range(vectors)]
    acc = {w: cgutils.alloca_once(builder, VEC) for w in grid}
    at = cgutils.alloca_once(builder, I64)
    with cgutils.for_range(builder, a["groups"]) as group:
        row = builder.mul(group.index, I64(rows))
        for w in grid:
            builder.store(ir.Constant(VEC, [0.0] * LANES), acc[w])
        starts = _rows(builder, a["x"], a["line"], row, rows)
        builder.store(I64(0), at)

        def entry() -> None:
            for way in range(ways):
                gradient, offset = _entry(builder, a, builder.add(builder.load(at), I64(way)))
                for r in range(rows):
                    under = builder.gep(starts[r], [offset])
                    for v in range(vectors):
                        one = load(builder, step(builder, under, v * LANES))
                        builder.store(fma(builder, gradient, one, builder.load(acc[way, r, v])), acc[way, r, v])
            builder.store(builder.add(builder.load(at), I64(ways)), at)

        rolled(builder, builder.sdiv(builder.add(a["count"], I64(ways - 1)), I64(ways)), entry)
        for r, out in enumerate(_rows(builder, a["g"], a["pitch"], row, rows)):
            for v in range(vectors):
                total = builder.load(acc[0, r, v])
                if ways == 2:
                    total = builder.fadd(total, builder.load(acc[1, r, v]))
                spot = step(builder, out, v * LANES)
                store(builder, builder.fadd(load(builder, spot), total), spot)


def _spread(builder: Any, rows: int, vectors: int, a: dict[str, Any]) -> None:
    """X[place + y * line + v] += value * G[y][v] for every entry of the list, y in groups of `rows`."""
    at = cgutils.alloca_once(builder, I64)
    with cgutils.for_range(builder, a["groups"]) as group:
        row = builder.mul(group.index, I64(rows))
        held: dict[tuple[int, int], Any] = {}
        for r, start in enumerate(_rows(builder, a["g"], a["pitch"], row, rows)):
            held |= {(r, v): load(builder, step(builder, start, v * LANES)) for v in range(vectors)}
        starts = _rows(builder, a["x"], a["line"], row, rows)
        builder.store(I64(0), at)

        def entry() -> None:
            gradient, offset = _entry(builder, a, builder.load(at))
            for r in range(rows):
                under = builder.gep(starts[r], [offset])
                for v in range(vectors):
                    spot = step(builder, under, v * LANES)
                    store(builder, fma(builder, gradient, held[r, v], load(builder, spot)), spot)
            builder.store(builder.add(builder.load(at), I64(1)), at)

        rolled(builder, a["count"], entry)


def _rows(builder: Any, base: Any, pitch: Any, row: Any, rows: int) -> list[Any]:
    """Pointers to `rows` rows from `row` on."""
    return [builder.gep(base, [builder.mul(builder.add(row, I64(r)), pitch)]) for r in range(rows)]


def _entry(builder: Any, a: dict[str, Any], at: Any) -> tuple[Any, Any]:
    """Gradient in all lanes, and place, of one entry of the list."""
    return splat(builder, builder.load(builder.gep(a["value"], [at]))), builder.load(builder.gep(a["place"], [at]))


_WALK = ("rows", "vectors", "g", "go", "pitch", "x", "xo", "line", "groups", "place", "value", "lo", "count")


def _make_walk(body: Callable[..., None]) -> Callable[..., None]:
    """A walk over a list: one body for every shape, chosen by `rows` and `vectors`."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        a, kinds = (dict(zip(_WALK, each, strict=True)) for each in (args, sig.args))
        for name, offset in (("g", "go"), ("x", "xo"), ("place", "lo"), ("value", "lo")):
            a[name] = at_offset(context, builder, kinds[name], a[name], a[offset])
        behind = builder.append_basic_block("walked")
        choice = builder.switch(builder.add(builder.mul(a["vectors"], I64(_CODE)), a["rows"]), behind)
        for vectors, many in SHAPES.items():
            for rows in many:
                block = builder.append_basic_block(f"walk{rows}x{vectors}")
                choice.add_case(I64(vectors * _CODE + rows), block)
                builder.position_at_end(block)
                body(builder, rows, vectors, a)
                builder.branch(behind)
        builder.position_at_end(behind)
        return context.get_dummy_value()

    @intrinsic  # type: ignore[untyped-decorator]
    def walk(
        typing: Any, rows: Any, vectors: Any, g: Any, go: Any, pitch: Any, x: Any, xo: Any, line: Any, groups: Any,
        place: Any, value: Any, lo: Any, count: Any,
    ) -> Any:  # fmt: skip
        return types.void(N, N, g, N, N, x, N, N, N, place, value, N, N), codegen

    return walk  # type: ignore[no-any-return]


_CODE = 16  # more than the rows of any shape
gather, spread = _make_walk(_gather), _make_walk(_spread)
