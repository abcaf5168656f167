"""Networks as data: a tuple of layers, and where each tensor lies in the flat parameter vector.

The flat layout is PyTorch's: for every layer in order weight, then bias, each in C order; convolution weights are
(out, in, kh, kw), linear weights (out, in). So `torch.nn.utils.parameters_to_vector` of the equal `nn.Sequential`
is the same vector, and every engine reads the same numbers. Running statistics of batch normalisation are no
parameters: they travel in `Model.buffers` (mean, then variance of every such layer in order) and the number of
batches seen in `Model.counters`, as PyTorch's buffers do, and methods average them with the weights of FedAvg.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedcohort.errors import TrainingError, UnknownName
from fedcohort.types import Model


@dataclass(frozen=True, slots=True)
class Conv:
    """2-d convolution to `out` channels with a square `kernel`, and so many zeros as `padding` on each side.

    >>> Network((1, 8, 8), (Conv(4, kernel=3, padding=1, stride=2),)).shapes[-1]
    (4, 4, 4)
    """

    out: int
    kernel: int
    padding: int = 0
    stride: int = 1
    bias: bool = True


@dataclass(frozen=True, slots=True)
class ReLU:
    """max(x, 0), element by element.

    >>> Network((3,), (ReLU(),)).n_params
    0
    """


@dataclass(frozen=True, slots=True)
class MaxPool:
    """Maximum over `size` x `size` windows, `stride` apart (0: as far as they are wide); what is left over is dropped.

    `padding` adds a border that never wins, at most half a window.

    >>> Network((4, 9, 9), (MaxPool(2),)).shapes[-1]
    (4, 4, 4)
    """

    size: int = 2
    stride: int = 0
    padding: int = 0


@dataclass(frozen=True, slots=True)
class AvgPool:
    """Mean over `size` x `size` windows, `stride` apart (0: as far as they are wide); what is left over is dropped.

    >>> Network((4, 9, 9), (AvgPool(3),)).shapes[-1]
    (4, 3, 3)
    """

    size: int = 2
    stride: int = 0


@dataclass(frozen=True, slots=True)
class GlobalAvgPool:
    """Mean over all places of a channel.

    >>> Network((4, 9, 9), (GlobalAvgPool(),)).shapes[-1]
    (4, 1, 1)
    """


@dataclass(frozen=True, slots=True)
class Flatten:
    """(channels, y, x) to one axis, in that order.

    >>> Network((4, 2, 2), (Flatten(),)).shapes[-1]
    (16,)
    """


@dataclass(frozen=True, slots=True)
class Linear:
    """Fully connected to `out` values.

    >>> Network((3,), (Linear(2),)).n_params
    8
    """

    out: int
    bias: bool = True


@dataclass(frozen=True, slots=True)
class GroupNorm:
    """Every sample's channels in `groups`, each centred and scaled by its own statistics; then a scale and a shift.

    >>> Network((4, 5, 5), (GroupNorm(2),)).n_params
    8
    """

    groups: int
    eps: float = 1e-5


@dataclass(frozen=True, slots=True)
class BatchNorm:
    """Every channel centred and scaled by the statistics of the batch, in evaluation by running ones.

    `momentum` is the share of a batch in the running statistics.

    >>> Network((4, 5, 5), (BatchNorm(),)).n_buffers
    8
    """

    eps: float = 1e-5
    momentum: float = 0.1


@dataclass(frozen=True, slots=True)
class Dropout:
    """Zero with probability `p`, else times 1 / (1 - p); in training only. Masks: :mod:`~.dropout_masks`.

    >>> Network((3,), (Dropout(0.2),)).shapes[-1]
    (3,)
    """

    p: float = 0.5


@dataclass(frozen=True, slots=True)
class Residual:
    """The sum of two ways through `body` and `shortcut`; an empty shortcut is the input itself.

    >>> Network((4, 8, 8), (Residual((Conv(4, 3, 1), ReLU(), Conv(4, 3, 1))),)).shapes[-1]
    (4, 8, 8)
    """

    body: tuple[Layer, ...]
    shortcut: tuple[Layer, ...] = ()


Layer = Conv | ReLU | MaxPool | AvgPool | GlobalAvgPool | Flatten | Linear | GroupNorm | BatchNorm | Dropout | Residual


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor inside the flat vector. A scale or shift of a normalisation has no `fan_in` but a first value."""

    name: str
    shape: tuple[int, ...]
    start: int
    fan_in: int
    first: float | None = None

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
        return _shapes(self.layers, self.input_shape)

    @cached_property
    def tensors(self) -> tuple[Tensor, ...]:
        """Weights and biases in flat order."""
        found: list[Tensor] = []
        for at, layer, before in walk(self.layers, self.input_shape):
            fan_in = math.prod(before) if isinstance(layer, Linear) else before[0] * getattr(layer, "kernel", 1) ** 2
            for name, dims, first in _tensors_of(layer, before):
                start = found[-1].stop if found else 0
                found.append(Tensor(f"{at}.{name}", dims, start, fan_in, first))
        return tuple(found)

    @cached_property
    def normalised(self) -> dict[str, int]:
        """Name and channels of every batch normalisation, in order."""
        found = walk(self.layers, self.input_shape)
        return {name: shape[0] for name, layer, shape in found if isinstance(layer, BatchNorm)}

    @property
    def n_buffers(self) -> int:
        """Length of the running statistics: a mean and a variance for every channel of a batch normalisation."""
        return 2 * sum(self.normalised.values())

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
        owner = self.tensors[-1].name.rpartition(".")[0]
        return slice(min(t.start for t in self.tensors if t.name.rpartition(".")[0] == owner), self.tensors[-1].stop)

    def initial(self, rng: np.random.Generator) -> NDArray[np.float32]:
        """Uniform on +-1/sqrt(fan in), as PyTorch's defaults for these layers; normalisations start as 1 and 0."""
        params = np.empty(self.n_params, np.float32)
        for t in self.tensors:
            if t.first is not None:
                params[t.start : t.stop] = t.first
                continue
            bound = 1.0 / math.sqrt(t.fan_in)
            params[t.start : t.stop] = rng.uniform(-bound, bound, t.stop - t.start)
        return params

    def fresh(self, rng: np.random.Generator) -> Model:
        """A fresh model with the parameters of :meth:`initial`; running means of 0 and variances of 1."""
        parts = [np.repeat(np.array([0.0, 1.0], np.float32), channels) for channels in self.normalised.values()]
        buffers = np.concatenate(parts) if parts else np.empty(0, np.float32)
        return Model(self.initial(rng), buffers, np.zeros(len(self.normalised), np.int64))


def _shapes(layers: tuple[Layer, ...], shape: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    out = [shape]
    for at, layer in enumerate(layers):
        after = _shape_after(layer, out[-1])
        if after is None:
            raise TrainingError(
                f"layer {at} ({layer}) after shape {out[-1]}",
                "the layer does not fit what comes before it",
                "change the network",
            )
        out.append(after)
    return tuple(out)


def walk(
    layers: tuple[Layer, ...], shape: tuple[int, ...], prefix: str = ""
) -> Iterator[tuple[str, Layer, tuple[int, ...]]]:
    """Every layer with its name in torch and its input's shape, in the order of the parameters.

    A residual's parts come in its place.
    """
    for at, (layer, before) in enumerate(zip(layers, _shapes(layers, shape), strict=False)):
        if isinstance(layer, Residual):
            yield from walk(layer.body, before, f"{prefix}{at}.body.")
            yield from walk(layer.shortcut, before, f"{prefix}{at}.shortcut.")
        else:
            yield f"{prefix}{at}", layer, before


def _tensors_of(layer: Layer, shape: tuple[int, ...]) -> list[tuple[str, tuple[int, ...], float | None]]:
    """Name, shape and first value (None: drawn) of a layer's tensors."""
    if isinstance(layer, GroupNorm | BatchNorm):
        return [("weight", (shape[0],), 1.0), ("bias", (shape[0],), 0.0)]
    if not isinstance(layer, Conv | Linear):
        return []
    square = (layer.kernel, layer.kernel) if isinstance(layer, Conv) else ()
    weight: tuple[str, tuple[int, ...], float | None] = ("weight", (layer.out, shape[0], *square), None)
    return [weight, ("bias", (layer.out,), None)] if layer.bias else [weight]


def window_of(layer: Conv | MaxPool | AvgPool) -> tuple[int, int, int]:
    """Width, stride and padding of a layer's windows."""
    if isinstance(layer, Conv):
        return layer.kernel, layer.stride, layer.padding
    padding = layer.padding if isinstance(layer, MaxPool) else 0
    return layer.size, layer.stride or layer.size, padding


def _shape_after(layer: Layer, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """Shape of the layer's output; None where it does not fit."""
    if isinstance(layer, ReLU | Dropout):
        return shape
    if isinstance(layer, Flatten):
        return (math.prod(shape),)
    if isinstance(layer, Residual):
        ends = [_shapes(way, shape)[-1] for way in (layer.body, layer.shortcut)]
        return ends[0] if ends[0] == ends[1] else None
    if isinstance(layer, Linear):
        return (layer.out,) if len(shape) == 1 else None
    if len(shape) != 3:
        return None
    if isinstance(layer, GroupNorm):
        return shape if shape[0] % layer.groups == 0 else None
    if isinstance(layer, BatchNorm):
        return shape
    if isinstance(layer, GlobalAvgPool):
        return (shape[0], 1, 1)
    size, stride, padding = window_of(layer)
    side = [(n + 2 * padding - size) // stride + 1 for n in shape[1:]]
    fits = min(shape[1:]) + 2 * padding >= size and (isinstance(layer, Conv) or 2 * padding <= size)
    return (layer.out if isinstance(layer, Conv) else shape[0], *side) if fits else None


def mlp(features: int, *hidden: int, classes: int) -> Network:
    """A perceptron with these `hidden` widths; none at all is softmax regression.

    >>> mlp(64, 32, classes=10) == Network((64,), (Linear(32), ReLU(), Linear(10)))
    True
    """
    layers: list[Layer] = []
    for width in hidden:
        layers += [Linear(width), ReLU()]
    return Network((features,), (*layers, Linear(classes)))


def norm_layers(norm: str | None, channels: int) -> tuple[Layer, ...]:
    """Normalisation behind a convolution: "group" (at most 8 groups), "batch", or none."""
    if norm is None or norm == "none":
        return ()
    if norm == "batch":
        return (BatchNorm(),)
    if norm == "group":
        return (GroupNorm(max(g for g in range(1, 9) if channels % g == 0)),)
    raise UnknownName.among("norm", norm, ("group", "batch", "none"))


def lenet(
    input_shape: tuple[int, int, int],
    channels: tuple[int, ...],
    kernel: int,
    hidden: tuple[int, ...],
    classes: int,
    padding: int = 0,
    norm: str | None = None,
) -> Network:
    """Convolution, `norm`, ReLU, 2 x 2 max-pool for each entry of `channels`; then fully connected `hidden` layers.

    >>> lenet((3, 32, 32), (6, 16), kernel=5, hidden=(120, 84), classes=10).n_params
    62006
    """
    layers: list[Layer] = []
    for out in channels:
        layers += [Conv(out, kernel, padding), *norm_layers(norm, out), ReLU(), MaxPool(2)]
    layers.append(Flatten())
    for width in hidden:
        layers += [Linear(width), ReLU()]
    return Network(input_shape, (*layers, Linear(classes)))


def resnet(
    input_shape: tuple[int, int, int],
    widths: tuple[int, ...] = (16, 32, 64),
    blocks: int = 1,
    classes: int = 10,
    norm: str | None = "group",
) -> Network:
    """The residual network for small images of He et al.: 6 `blocks` + 2 layers where there are three `widths`.

    A 3 x 3 stem, then for every width so many residual blocks of two 3 x 3 convolutions, the first of a new width with
    stride 2 and a 1 x 1 convolution as its shortcut; global average pooling and one linear layer.

    >>> resnet((3, 32, 32)).n_params
    78042
    """

    def conv(out: int, kernel: int, stride: int = 1) -> tuple[Layer, ...]:
        bare = norm is None or norm == "none"
        return Conv(out, kernel, kernel // 2, stride, bias=bare), *norm_layers(norm, out)

    layers: list[Layer] = [*conv(widths[0], 3), ReLU()]
    before = widths[0]
    for at, width in enumerate(widths):
        for block in range(blocks):
            stride = 2 if at > 0 and block == 0 else 1
            shortcut = conv(width, 1, stride) if stride > 1 or width != before else ()
            layers += [Residual((*conv(width, 3, stride), ReLU(), *conv(width, 3)), shortcut), ReLU()]
            before = width
    return Network(input_shape, (*layers, GlobalAvgPool(), Flatten(), Linear(classes)))
