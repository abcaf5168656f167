"""Columns of the table of steps of a layer graph, and how a step's function is called."""

from __future__ import annotations

from typing import Any

from numba import types
from numba.extending import intrinsic

from .compile import caller
from .signatures import FS, F, I, N
from .vectors import F32, I64, make_call

_P = types.CPointer(types.float32)

# Columns. "S_" is the value a step reads, "D_" the one it writes, "T_" the second one that an addition reads.
(
    FORWARD,  # address of the compiled forward step
    BACKWARD,  # address of the compiled backward step
    S_C,  # channels, or features
    S_H,
    S_W,
    S_B,  # border of zeros around the value
    S_AT,  # workspace: the value, [channel][y][x][sample]
    S_GB,  # border of zeros around its gradient
    S_GAT,  # workspace: its gradient, in the same order
    D_C,
    D_H,
    D_W,
    D_B,
    D_AT,
    D_GB,
    D_GAT,
    T_B,
    T_AT,
    T_GB,
    T_GAT,
    WEIGHT,  # offset in the parameters
    BIAS,  # offset in the parameters, -1: none
    SIZE_Y,  # window
    SIZE_X,
    STRIDE,
    PAD,
    WRITES,  # gradient by S: 0 written, 1 added to, -1 not wanted
    T_WRITES,  # gradient by T
    GROUPS,  # of a normalisation, 0: statistics of the batch
    STATS,  # offset of running statistics in the buffers
    RELU,  # 1: the step ends with a ReLU
    KEPT,  # workspace: what the backward step needs of the forward one
    SCRATCH,  # workspace: lives within one step
    CONSTANTS,  # workspace: numbers that are no integers
    ORDER,  # the how-manieth dropout this is
    THRESHOLD,  # of a dropout's mask
    ZERO,  # workspace: a zero
    PANELS,  # address of the compiled `panels`
    SUMS,  # address of the compiled `weight_sums`
    TILED,  # 1: a convolution may go by tiles
    WIDTH,
) = range(41)

STEP_OF = types.void(I, F, FS, F, F, N, N, N, N)  # row, workspace, weights, gradient, statistics, s, train, key, first
SUMS_OF = types.void(N, N, _P, N, N, _P, N, N, N, _P, N, types.CPointer(types.int64), N, N, N)

call_step = caller(STEP_OF)
_CALL_SUMS = make_call({2: F32, 5: F32, 9: F32, 11: I64}, 15)


@intrinsic  # type: ignore[untyped-decorator]
def call_sums(
    typing: Any, address: Any, rows: Any, count: Any, g: Any, go: Any, gr: Any, a: Any, ao: Any, ar: Any, ay: Any,
    b: Any, bo: Any, taps: Any, by: Any, ny: Any, length: Any,
) -> Any:  # fmt: skip
    """Call `weight_sums`."""
    return types.void(N, N, N, g, N, N, a, N, N, N, b, N, taps, N, N, N), _CALL_SUMS
