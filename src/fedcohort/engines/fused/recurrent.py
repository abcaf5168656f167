"""A layer of gated recurrent units over whole sequences, forward and backward, without a call per step.

PyTorch runs dozens of small operations for each step of a sequence. Here a step is one matrix product in the kernels
of the fused engine and one pass over the gates. Arrays lie as [step][sample][unit]; the gates are in PyTorch's order
(reset, update, new), and the products with the input are made beforehand for all steps at once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numpy.typing import NDArray

from .compile import entry, kernel
from .loss import exp32
from .vectors import SLACK, call_panels

Floats = NDArray[np.float32]

_F, _N = types.float32[::1], types.intp
_ONE, _TWO, _ZERO = np.float32(1.0), np.float32(2.0), np.float32(0.0)


@kernel
def logistic(x: Any) -> Any:
    """1 / (1 + e^-x)."""
    e = exp32(-abs(x))
    return (_ONE if x >= _ZERO else e) / (_ONE + e)


@kernel
def tangent(x: Any) -> Any:
    """tanh x, with an absolute error of about one unit in the last place of 1."""
    e = exp32(-_TWO * abs(x))
    t = (_ONE - e) / (_ONE + e)
    return t if x >= _ZERO else -t


@kernel
def slack(a: Floats) -> Floats:
    """A copy with room for reads of whole vectors behind it."""
    out = np.zeros(a.size + SLACK, np.float32)
    out[: a.size] = a
    return out


@entry(types.void(_N, _F, _F, _F, _F, _F, _F, _N, _N, _N))
def run_forward(
    address: int, given: Floats, turned: Floats, bias: Floats, states: Floats, gates: Floats, inner: Floats,
    steps: int, samples: int, units: int,
) -> None:  # fmt: skip
    """States of all steps but the first, which is given; what backward needs into `gates` (r, z, n) and `inner`.

    `given` are the products with the input, (steps, samples, 3 units); `turned` is the recurrent weight, transposed.
    """
    u, wide = units, 3 * units
    w, zero = slack(turned), np.zeros(1, np.float32)
    own = np.zeros(samples * wide + SLACK, np.float32)
    for t in range(steps):
        for i in range(samples):
            own[i * wide : (i + 1) * wide] = bias
        call_panels(
            address, samples, own, 0, wide, states, t * samples * u, u, 0, 0, 1,
            w, 0, 0, 0, wide, 1, 1, u, zero, 0, 0, 1, wide,
        )  # fmt: skip
        for i in range(samples):
            at = t * samples + i
            x, h = given[at * wide : (at + 1) * wide], own[i * wide : (i + 1) * wide]
            out, kept = gates[at * wide : (at + 1) * wide], inner[at * u : (at + 1) * u]
            before = states[at * u : (at + 1) * u]
            after = states[(at + samples) * u : (at + samples + 1) * u]
            for j in range(2 * u):
                out[j] = logistic(x[j] + h[j])
            for j in range(u):
                kept[j] = h[2 * u + j]
                out[2 * u + j] = tangent(x[2 * u + j] + out[j] * kept[j])
                after[j] = out[2 * u + j] + out[u + j] * (before[j] - out[2 * u + j])


@entry(types.void(_N, _F, _F, _F, _F, _F, _F, _F, _F, _N, _N, _N))
def run_backward(
    address: int, above: Floats, weight: Floats, states: Floats, gates: Floats, inner: Floats, by_given: Floats,
    by_weight: Floats, by_bias: Floats, steps: int, samples: int, units: int,
) -> None:  # fmt: skip
    """Gradients by the products with the input, by the recurrent weight and its bias; `above` is by the states."""
    u, wide = units, 3 * units
    w, zero = slack(weight), np.zeros(1, np.float32)
    own = np.zeros(samples * wide + SLACK, np.float32)
    down = np.zeros(samples * u + SLACK, np.float32)
    found = np.zeros(wide * u + SLACK, np.float32)
    before = slack(states)
    for t in range(steps - 1, -1, -1):
        for i in range(samples):
            at = t * samples + i
            gate, kept, out = (
                gates[at * wide : (at + 1) * wide],
                inner[at * u : (at + 1) * u],
                own[i * wide : (i + 1) * wide],
            )
            d, up, h = down[i * u : (i + 1) * u], above[at * u : (at + 1) * u], before[at * u : (at + 1) * u]
            x = by_given[at * wide : (at + 1) * wide]
            for j in range(u):
                r, z, n = gate[j], gate[u + j], gate[2 * u + j]
                g = d[j] + up[j]
                new = g * (_ONE - z) * (_ONE - n * n)
                x[j] = new * kept[j] * r * (_ONE - r)
                x[u + j] = g * (h[j] - n) * z * (_ONE - z)
                x[2 * u + j] = new
                out[2 * u + j] = new * r
                d[j] = g * z
            out[: 2 * u] = x[: 2 * u]
            for j in range(wide):
                by_bias[j] += out[j]
        call_panels(
            address, samples, down, 0, u, own, 0, wide, 0, 0, 1, w, 0, 0, 0, u, 1, 1, wide, zero, 0, 0, 1, u
        )  # fmt: skip
        call_panels(
            address, wide, found, 0, u, own, 0, 1, 0, 0, wide,
            before, t * samples * u, 0, 0, u, 1, 1, samples, zero, 0, 0, 1, u,
        )  # fmt: skip
    by_weight[:] = found[: wide * u]
