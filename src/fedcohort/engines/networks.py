"""Networks as data: a tuple of layers, and where each tensor lies in the flat parameter vector.

The flat layout is PyTorch's: for every layer in order weight, then bias, each in C order; convolution weights are
(out, in, kh, kw), linear weights (out, in). So `torch.nn.utils.parameters_to_vector` of the equal `nn.Sequential`
is the same vector, and every engine reads the same numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedcohort.errors import TrainingError


@dataclass(frozen=True, slots=True)
class Conv:
    """2-d convolution to `out` channels with a square `kernel`, stride 1, and so many zeros as `padding` on each side.

    >>> Network((1, 8, 8), (Conv(4, kernel=3, padding=1),)).shapes[-1]
    (4, 8, 8)
    """

    out: int
    kernel: int
    padding: int = 0


@dataclass(frozen=True, slots=True)
class ReLU:
    """max(x, 0), element by element.

    >>> Network((3,), (ReLU(),)).n_params
    0
    """


@dataclass(frozen=True, slots=True)
class MaxPool:
    """Non-overlapping maximum over `size` x `size` windows; rows and columns left over are dropped.

    >>> Network((4, 9, 9), (MaxPool(2),)).shapes[-1]
    (4, 4, 4)
    """

    size: int = 2


@dataclass(frozen=True, slots=True)
class Flatten:
    """(channels, y, x) to one axis, in that order.

    >>> Network((4, 2, 2), (Flatten(),)).shapes[-1]
    (16,)
    """


@dataclass(frozen=True, slots=True)
class Linear:
    """Fully connected to `out` values, with bias.

    >>> Network((3,), (Linear(2),)).n_params
    8
    """

    out: int


Layer = Conv | ReLU | MaxPool | Flatten | Linear


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor inside the flat vector."""

    name: str
    shape: tuple[int, ...]
    start: int
    fan_in: int

    @property
    def stop(self) -> int:
        """One past the last element."""
        return self.start + math.prod(self.shape)


@dataclass(frozen=True)
class Network:
    """A feed-forward network of `layers` on inputs of shape `input_shape` (without the batch axis).

    >>> Network((64,), (Linear(32), ReLU(), Linear(10))).n_params
    2410
    """

    input_shape: tuple[int, ...]  # (features,) or (channels, height, width)
    layers: tuple[Layer, ...]

    @cached_property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Activation shapes: the input's, then one per layer."""
        out = [self.input_shape]
        for at, layer in enumerate(self.layers):
            out.append(_shape_after(layer, out[-1], at))
        return tuple(out)

    @cached_property
    def tensors(self) -> tuple[Tensor, ...]:
        """Weights and biases in flat order."""
        found: list[Tensor] = []
        start = 0
        for at, (layer, shape) in enumerate(zip(self.layers, self.shapes, strict=False)):
            if isinstance(layer, Conv):
                weight: tuple[int, ...] = (layer.out, shape[0], layer.kernel, layer.kernel)
            elif isinstance(layer, Linear):
                weight = (layer.out, shape[0])
            else:
                continue
            fan_in = math.prod(weight[1:])
            for name, dims in (("weight", weight), ("bias", (layer.out,))):
                found.append(Tensor(f"{at}.{name}", dims, start, fan_in))
                start = found[-1].stop
        return tuple(found)

    @property
    def n_params(self) -> int:
        """Length of the flat vector."""
        return self.tensors[-1].stop if self.tensors else 0

    @property
    def classes(self) -> int:
        """Width of the output."""
        return self.shapes[-1][0]

    @property
    def last_layer(self) -> slice:
        """The last layer's weight and bias in the flat vector."""
        return slice(self.tensors[-2].start, self.tensors[-1].stop)

    def initial(self, rng: np.random.Generator) -> NDArray[np.float32]:
        """Uniform on +-1/sqrt(fan in), as PyTorch's defaults for these layers."""
        params = np.empty(self.n_params, np.float32)
        for t in self.tensors:
            bound = 1.0 / math.sqrt(t.fan_in)
            params[t.start : t.stop] = rng.uniform(-bound, bound, t.stop - t.start)
        return params


def _shape_after(layer: Layer, shape: tuple[int, ...], at: int) -> tuple[int, ...]:
    if isinstance(layer, ReLU):
        return shape
    if isinstance(layer, Flatten):
        return (math.prod(shape),)
    if isinstance(layer, Linear) and len(shape) == 1:
        return (layer.out,)
    if isinstance(layer, Conv) and len(shape) == 3:
        side = [n + 2 * layer.padding - layer.kernel + 1 for n in shape[1:]]
        if min(side) >= 1:
            return (layer.out, *side)
    if isinstance(layer, MaxPool) and len(shape) == 3 and min(shape[1:]) >= layer.size:
        return (shape[0], shape[1] // layer.size, shape[2] // layer.size)
    raise TrainingError(
        f"layer {at} ({layer}) after shape {shape}",
        "the layer does not fit what comes before it",
        "change the network",
    )


def mlp(features: int, *hidden: int, classes: int) -> Network:
    """A perceptron with these `hidden` widths; none at all is softmax regression.

    >>> mlp(64, 32, classes=10) == Network((64,), (Linear(32), ReLU(), Linear(10)))
    True
    """
    layers: list[Layer] = []
    for width in hidden:
        layers += [Linear(width), ReLU()]
    return Network((features,), (*layers, Linear(classes)))


def lenet(
    input_shape: tuple[int, int, int],
    channels: tuple[int, ...],
    kernel: int,
    hidden: tuple[int, ...],
    classes: int,
    padding: int = 0,
) -> Network:
    """Convolution, ReLU, 2 x 2 max-pool for each entry of `channels`; then fully connected `hidden` layers.

    >>> lenet((3, 32, 32), (6, 16), kernel=5, hidden=(120, 84), classes=10).n_params
    62006
    """
    layers: list[Layer] = []
    for out in channels:
        layers += [Conv(out, kernel, padding), ReLU(), MaxPool(2)]
    layers.append(Flatten())
    for width in hidden:
        layers += [Linear(width), ReLU()]
    return Network(input_shape, (*layers, Linear(classes)))
