"""The objective on a block of logits [class][sample]: per-sample losses, hits, and the gradient by the logits."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .compile import kernel, part
from .samples import power_of_two
from .signatures import BY_LOGITS_OF, MEASURE_OF
from .workspace import ACT, CI, GRAD

Floats = NDArray[np.float32]
Index = NDArray[np.int64]

# Entries of the objective's vector.
CE, PSEUDO, RCE, FLOOR, SMOOTHING = range(5)

_LOG2E = np.float32(1.44269504)
_LN2_HIGH, _LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
_P = tuple(np.float32(c) for c in (1 / 5040, 1 / 720, 1 / 120, 1 / 24, 1 / 6, 1 / 2))
_P0, _P1, _P2, _P3, _P4, _P5 = _P


@kernel
def exp32(x: Any) -> Any:
    """e^x for x <= 0 in float32, without a call, so that loops over it become vectors. NaN stays NaN."""
    y = max(x, np.float32(-87.0)) if x == x else x
    n = math.floor(y * _LOG2E + np.float32(0.5)) if x == x else np.float32(0.0)
    r = y - n * _LN2_HIGH - n * _LN2_LOW
    p = ((((_P0 * r + _P1) * r + _P2) * r + _P3) * r + _P4) * r + _P5
    return (p * r * r + r + np.float32(1.0)) * power_of_two(np.int32(n))


@kernel
def soften(last: Index, ws: Floats, top: Floats, total: Floats, count: int, s: int) -> None:
    """Probabilities into the gradient's room; `top` and `total` become max and log-sum-exp minus max."""
    for i in range(count):
        top[i] = ws[last[ACT] + i]
        total[i] = 0.0
    for k in range(1, last[CI]):
        z = ws[last[ACT] + k * s : last[ACT] + k * s + count]
        for i in range(count):
            top[i] = top[i] if z[i] <= top[i] else z[i]
    for k in range(last[CI]):
        z = ws[last[ACT] + k * s : last[ACT] + k * s + count]
        p = ws[last[GRAD] + k * s : last[GRAD] + k * s + count]
        for i in range(count):
            p[i] = exp32(z[i] - top[i])
        for i in range(count):
            total[i] += p[i]
    for k in range(last[CI]):
        p = ws[last[GRAD] + k * s : last[GRAD] + k * s + count]
        for i in range(count):
            p[i] /= total[i]
    for i in range(count):
        total[i] = math.log(total[i])


@kernel
def guesses(last: Index, ws: Floats, top: Floats, first: Floats, count: int, s: int) -> None:
    """The first class that has the highest logit."""
    for i in range(count):
        first[i] = 0.0
    for k in range(last[CI] - 1, -1, -1):
        z = ws[last[ACT] + k * s : last[ACT] + k * s + count]
        for i in range(count):
            first[i] = np.float32(k) if z[i] == top[i] else first[i]


@part(MEASURE_OF)
def measure(
    last: Index, ws: Floats, label: Index, o: NDArray[np.float64], frozen: Floats, given: bool,
    hard: Floats, loss: Floats, hit: Floats, count: int, s: int,
) -> None:  # fmt: skip
    """Cross-entropy, objective and correctness of each sample. Leaves probabilities where the gradient will be."""
    classes, z, p = last[CI], last[ACT], last[GRAD]
    top, total = np.empty(count, np.float32), np.empty(count, np.float32)
    soften(last, ws, top, total, count, s)
    guesses(last, ws, top, hit, count, s)
    for i in range(count):
        y = label[i]
        base = total[i] + top[i]
        hard[i] = base - ws[z + y * s + i]
        value = o[CE] * (1.0 - o[SMOOTHING]) * hard[i]
        if o[CE] * o[SMOOTHING] != 0.0 or o[PSEUDO] != 0.0:
            spread = soft = 0.0
            for k in range(classes):
                log_p = ws[z + k * s + i] - base
                spread += log_p
                soft += (frozen[i, k] if given else ws[p + k * s + i]) * log_p
            value -= o[CE] * o[SMOOTHING] / classes * spread + o[PSEUDO] * soft
        value -= o[RCE] * o[FLOOR] * (1.0 - ws[p + y * s + i])
        loss[i] = value
        hit[i] = hit[i] == y


@part(BY_LOGITS_OF)
def by_logits(
    last: Index, ws: Floats, label: Index, o: NDArray[np.float64], frozen: Floats, given: bool,
    scale: Floats, count: int, s: int,
) -> None:  # fmt: skip
    """Turn the probabilities that :func:`measure` left into the gradient, times each sample's scale."""
    classes, p = last[CI], last[GRAD]
    ce, pseudo = np.float32(o[CE]), np.float32(o[PSEUDO])
    even, sharp = np.float32(o[CE] * o[SMOOTHING] / classes), np.float32(o[CE] * (1.0 - o[SMOOTHING]))
    pull = np.zeros(count, np.float32)
    if o[RCE] != 0.0:
        for i in range(count):
            pull[i] = np.float32(o[RCE] * o[FLOOR]) * ws[p + label[i] * s + i]
    for k in range(classes):
        out = ws[p + k * s : p + k * s + count]
        if given:
            for i in range(count):
                out[i] = ((ce - pull[i]) * out[i] - even + pseudo * (out[i] - frozen[i, k])) * scale[i]
        else:
            for i in range(count):
                out[i] = ((ce - pull[i]) * out[i] - even) * scale[i]
        for i in range(count, s):
            ws[p + k * s + i] = 0.0
    for i in range(count):
        ws[p + label[i] * s + i] += (pull[i] - sharp) * scale[i]
