"""Types of what the kernels are given, and how the parts of a program call each other by address."""

from __future__ import annotations

from numba import types

from .compile import caller

N, YES = types.intp, types.boolean
F, D, I, B = types.float32[::1], types.float64[::1], types.int64[::1], types.int8[::1]  # noqa: E741
# What is only read may be read-only.
FS, IS = (types.Array(t, 1, "C", readonly=True) for t in (types.float32, types.int64))
XS = types.Array(types.float32, 2, "C", readonly=True)
SPACE = (types.int64[:, ::1], F, B, I)

TAKE_OF = types.void(I, F, XS, IS, N)
FORWARD_OF = types.void(I, I, F, B, FS, N)
BACKWARD_OF = types.void(I, I, YES, YES, F, B, FS, F, XS, IS, F, YES, N)
MEASURE_OF = types.void(I, F, IS, D, XS, YES, F, F, F, N, N)
BY_LOGITS_OF = types.void(I, F, IS, D, XS, YES, FS, N, N)
MOVE_OF = types.void(F, F, FS, F, F, FS, D, N)
GRADIENT_OF = types.void(*SPACE, FS, F, XS, IS, IS, D, XS, YES, FS, F, F, F)

call_take, call_forward, call_backward = caller(TAKE_OF), caller(FORWARD_OF), caller(BACKWARD_OF)
call_measure, call_by_logits, call_gradient = caller(MEASURE_OF), caller(BY_LOGITS_OF), caller(GRADIENT_OF)
call_move = caller(MOVE_OF)
