"""Micro-kernel of a convolution's weight gradient: sums of products along runs that lie one after the other.

    G[r][q] += sum over rows y and places j of A[r][y][j] * B[q][y][j]

A are the gradients of output channels, B the inputs under the taps; with samples innermost both are long runs, so
that all lanes are used whatever the number of channels. A tile holds four channels and three taps in twelve vectors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .compile import part
from .graph_rows import SUMS_OF
from .vectors import I32, I64, INTS, LANES, VEC, N, at_offset, fma, load, rolled, splat, step

ROWS, TAPS = (4, 2, 1), (3, 1)  # tiles

_DOTS = ("g", "go", "gr", "a", "ao", "ar", "ay", "b", "bo", "taps", "to", "by", "ny", "length")


def _sums(builder: Any, vectors: list[Any]) -> list[Any]:
    """Sums over the lanes: of LANES vectors in the lanes of one, by adding neighbours, then pairs, then fours ..."""
    gap = 1
    while gap < LANES:
        vectors = [*vectors, vectors[-1]] if len(vectors) % 2 else vectors
        lanes = [(i, i + gap) if not i & gap else (LANES + i - gap, LANES + i) for i in range(LANES)]
        low, high = (ir.Constant(INTS, [pair[half] for pair in lanes]) for half in (0, 1))
        vectors = [
            builder.fadd(builder.shuffle_vector(a, b, low), builder.shuffle_vector(a, b, high))
            for a, b in zip(vectors[::2], vectors[1::2], strict=True)
        ]
        gap *= 2
    return vectors


def _dots(builder: Any, rows: int, taps: int, d: dict[str, Any]) -> None:
    """One tile."""
    grid = [(r, q) for r in range(rows) for q in range(taps)]
    acc = {rq: cgutils.alloca_once(builder, VEC) for rq in grid}
    for rq in grid:
        builder.store(ir.Constant(VEC, [0.0] * LANES), acc[rq])
    whole = builder.sdiv(d["length"], I64(LANES))
    left = builder.sub(d["length"], builder.mul(whole, I64(LANES)))
    a0 = [builder.gep(d["a"], [builder.mul(d["ar"], I64(r))]) for r in range(rows)]
    b0 = [builder.gep(d["b"], [builder.load(step(builder, d["taps"], q))]) for q in range(taps)]
    at = cgutils.alloca_once(builder, I64)
    with cgutils.for_range(builder, d["ny"]) as y:
        a = [builder.gep(p, [builder.mul(d["ay"], y.index)]) for p in a0]
        b = [builder.gep(p, [builder.mul(d["by"], y.index)]) for p in b0]
        builder.store(I64(0), at)

        def visit(mask: Any = None) -> None:
            here = builder.load(at)
            right = [load(builder, builder.gep(p, [here])) for p in b]
            for r in range(rows):
                one = load(builder, builder.gep(a[r], [here]))
                if mask is not None:
                    one = builder.select(mask, one, ir.Constant(VEC, [0.0] * LANES))
                for q in range(taps):
                    other = right[q]
                    if mask is not None:  # what lies behind a run may be anything, even NaN
                        other = builder.select(mask, other, ir.Constant(VEC, [0.0] * LANES))
                    builder.store(fma(builder, one, other, builder.load(acc[r, q])), acc[r, q])
            builder.store(builder.add(here, I64(LANES)), at)

        rolled(builder, whole, visit)
        with builder.if_then(builder.icmp_signed(">", left, I64(0))):
            lanes = ir.Constant(INTS, list(range(LANES)))
            visit(builder.icmp_signed("<", lanes, splat(builder, builder.trunc(left, I32), INTS)))
    found = _sums(builder, [builder.load(acc[rq]) for rq in grid])
    for i, (r, q) in enumerate(grid):
        spot = builder.gep(d["g"], [builder.add(builder.mul(d["gr"], I64(r)), I64(q))])
        total = builder.extract_element(found[i // LANES], I32(i % LANES))
        builder.store(builder.fadd(builder.load(spot), total), spot)


def _make(rows: int, taps: int) -> Callable[..., None]:
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        d, kinds = (dict(zip(_DOTS, each, strict=True)) for each in (args, sig.args))
        for name, offset in (("g", "go"), ("a", "ao"), ("b", "bo"), ("taps", "to")):
            d[name] = at_offset(context, builder, kinds[name], d[name], d[offset])
        _dots(builder, rows, taps, d)
        return context.get_dummy_value()

    @intrinsic  # type: ignore[untyped-decorator]
    def dots(
        typing: Any, g: Any, go: Any, gr: Any, a: Any, ao: Any, ar: Any, ay: Any, b: Any, bo: Any, taps: Any, to: Any,
        by: Any, ny: Any, length: Any,
    ) -> Any:  # fmt: skip
        return types.void(g, N, N, a, N, N, N, b, N, taps, N, N, N, N), codegen

    return dots  # type: ignore[no-any-return]


dots43, dots41, dots23, dots21, dots13, dots11 = (_make(rows, taps) for rows in ROWS for taps in TAPS)


@part(SUMS_OF)
def weight_sums(
    rows: int, count: int, g: Any, go: int, gr: int, a: Any, ao: int, ar: int, ay: int, b: Any, bo: int, taps: Any,
    by: int, ny: int, length: int,
) -> None:  # fmt: skip
    """G for any number of rows and taps. `taps` says where each tap's run starts in B."""
    r = 0
    while r < rows:
        high = 4 if rows - r >= 4 else (2 if rows - r >= 2 else 1)
        q = 0
        while q < count:
            wide = 3 if count - q >= 3 else 1
            gq, aq = go + r * gr + q, ao + r * ar
            if high == 4 and wide == 3:
                dots43(g, gq, gr, a, aq, ar, ay, b, bo, taps, q, by, ny, length)
            elif high == 4:
                dots41(g, gq, gr, a, aq, ar, ay, b, bo, taps, q, by, ny, length)
            elif high == 2 and wide == 3:
                dots23(g, gq, gr, a, aq, ar, ay, b, bo, taps, q, by, ny, length)
            elif high == 2:
                dots21(g, gq, gr, a, aq, ar, ay, b, bo, taps, q, by, ny, length)
            elif wide == 3:
                dots13(g, gq, gr, a, aq, ar, ay, b, bo, taps, q, by, ny, length)
            else:
                dots11(g, gq, gr, a, aq, ar, ay, b, bo, taps, q, by, ny, length)
            q += wide
        r += high
