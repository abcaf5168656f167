"""`nn.GRU` in the kernels of the fused engine: same parameters, same results within rounding, no call per step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch

from .fused import recurrent
from .fused.blocks import panels

if TYPE_CHECKING:
    from torch import Tensor, nn


def qualifies(module: Any) -> bool:
    """Whether this is a GRU of one direction with biases and without dropout, in float32."""
    if not isinstance(module, torch.nn.GRU):
        return False
    plain = not module.bidirectional and module.bias and not module.dropout
    return plain and all(p.dtype == torch.float32 for p in module.parameters())


def use_fused_gru(module: nn.Module) -> int:
    """Let every GRU in the module that qualifies run in kernels, in place; how many do. Parameters stay the same."""
    found = [m for m in module.modules() if qualifies(m)]
    for layer in found:
        layer.forward = _Runner(cast("nn.GRU", layer))
    return len(found)


class _Runner:
    """What a GRU does when it is called with a batch of sequences."""

    def __init__(self, gru: nn.GRU) -> None:
        self._gru = gru

    def __call__(self, x: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """States of all steps, and the last one of every layer, as `nn.GRU` gives them.

        Calls with a first state, without a batch or with packed sequences go to `nn.GRU` itself.
        """
        gru, last = self._gru, []
        if state is not None or not isinstance(x, torch.Tensor) or x.ndim != 3:
            return torch.nn.GRU.forward(gru, x, state)
        h = x.transpose(0, 1) if gru.batch_first else x
        for layer in range(gru.num_layers):
            w, u, b, c = (getattr(gru, f"{name}_l{layer}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
            given = torch.nn.functional.linear(h, w, b)
            h = cast("Tensor", _Layer.apply(given, u, c))  # type: ignore[no-untyped-call]
            last.append(h[-1])
        return (h.transpose(0, 1) if gru.batch_first else h), torch.stack(last)


def _flat(tensor: Tensor) -> Any:
    return tensor.detach().contiguous().numpy().reshape(-1)


class _Layer(torch.autograd.Function):
    """One layer over a sequence, from the products with its input."""

    @staticmethod
    def forward(ctx: Any, given: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """States of all steps."""
        steps, samples, units = given.shape[0], given.shape[1], weight.shape[1]
        states = np.zeros((steps + 1) * samples * units, np.float32)
        gates = np.empty(steps * samples * 3 * units, np.float32)
        inner = np.empty(steps * samples * units, np.float32)
        recurrent.run_forward(
            panels.address,
            _flat(given),
            _flat(weight.t()),
            _flat(bias),
            states,
            gates,
            inner,
            steps,
            samples,
            units,
        )
        ctx.kept, ctx.weight, ctx.shape = (states, gates, inner), weight.detach(), (steps, samples, units)
        return torch.from_numpy(states[samples * units :].reshape(steps, samples, units))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *above: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients by the products with the input, the recurrent weight and its bias."""
        steps, samples, units = ctx.shape
        given = np.empty(steps * samples * 3 * units, np.float32)
        weight, bias = np.empty(3 * units * units, np.float32), np.zeros(3 * units, np.float32)
        recurrent.run_backward(
            panels.address,
            _flat(above[0]),
            _flat(ctx.weight),
            *ctx.kept,
            given,
            weight,
            bias,
            steps,
            samples,
            units,
        )
        shaped = given.reshape(steps, samples, 3 * units), weight.reshape(3 * units, units), bias
        by_given, by_weight, by_bias = (torch.from_numpy(a) for a in shaped)
        return by_given, by_weight, by_bias
