"""Forward and backward passes of many perceptrons at once: stacked weights, batched matrix products."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcohort.engines.networks import Flatten, Linear, Network, ReLU, Tensor
from fedcohort.errors import TrainingError

Floats = NDArray[np.floating[Any]]


class Dense:
    """A network of linear layers and ReLUs (an MLP, or softmax regression) on stacked parameters (m, p)."""

    def __init__(self, network: Network) -> None:
        tensors = iter(network.tensors)
        self._ops: list[tuple[Tensor, Tensor] | None] = []  # None is a ReLU
        for at, layer in enumerate(network.layers):
            if isinstance(layer, Linear) and layer.bias:
                self._ops.append((next(tensors), next(tensors)))
            elif isinstance(layer, ReLU):
                self._ops.append(None)
            elif not isinstance(layer, Flatten):
                raise TrainingError(
                    f"layer {at} ({layer})",
                    "the numpy engine takes flatten, ReLU and linear layers with a bias only",
                    "use the fused or the torch_reference engine",
                )
        self.n_params = network.n_params

    def forward(self, params: Floats, x: Floats) -> list[Floats]:
        """Activations of (m, p) or (1, p) parameters on x (m, B, d): the input's, then one per layer."""
        out = [x]
        for op in self._ops:
            if op is None:
                out.append(np.maximum(out[-1], 0.0))
                continue
            z: Floats = np.matmul(out[-1], _view(params, op[0]).swapaxes(1, 2))
            z += _view(params, op[1])[:, None]
            out.append(z)
        return out

    def backward(self, params: Floats, activations: list[Floats], dz: Floats, gradient: Floats) -> None:
        """Write the gradient (m, p) of a loss whose derivative by the logits is dz (m, B, K). dz is overwritten."""
        ones = np.ones((1, 1, dz.shape[1]), dz.dtype)
        for at in range(len(self._ops) - 1, -1, -1):
            op = self._ops[at]
            if op is None:
                dz *= activations[at + 1] > 0.0
                continue
            np.matmul(dz.swapaxes(1, 2), activations[at], out=_view(gradient, op[0]))
            np.matmul(ones, dz, out=_view(gradient, op[1])[:, None])
            if at > 0:
                dz = np.matmul(dz, _view(params, op[0]))


def _view(stack: Floats, tensor: Tensor) -> Floats:
    return stack[:, tensor.start : tensor.stop].reshape(stack.shape[0], *tensor.shape)
