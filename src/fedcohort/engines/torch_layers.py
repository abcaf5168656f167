"""The layers of a `Network` as torch modules, with the same parameters in the same order."""

from __future__ import annotations

from typing import cast

from fedcohort.engines import dropout_masks, networks
from fedcohort.engines.networks import Layer, Network
from fedcohort.errors import MissingExtra

try:
    import torch
    from torch import Tensor, nn
except ImportError:
    raise MissingExtra.of("this engine", "torch") from None


class SeededDropout(nn.Module):
    """Dropout with the masks of :mod:`fedcohort.engines.dropout_masks`: the same in every engine.

    >>> layer = SeededDropout(0.5)
    >>> layer.begin(key=7, layer=0)
    >>> bool((layer(torch.ones(4, 3)) == layer.eval()(torch.ones(4, 3))).all())
    False
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p
        self._key = self._layer = self._step = 0

    def begin(self, key: int, layer: int) -> None:
        """A client starts its training: its key, and the how-manieth dropout this is."""
        self._key, self._layer, self._step = key, layer, 0

    def forward(self, x: Tensor) -> Tensor:
        """Zero or x / (1 - p) in training, x itself in evaluation."""
        if not self.training:
            return x
        start = dropout_masks.start_of(self._key, self._step, self._layer)
        self._step += 1
        found = dropout_masks.kept(start, len(x), x[:1].numel(), self.p)
        return x * (torch.from_numpy(found).reshape(x.shape).to(x) / (1.0 - self.p))


class ResidualSum(nn.Module):
    """The sum of two ways; an empty `shortcut` is the input itself."""

    def __init__(self, body: nn.Module, shortcut: nn.Module) -> None:
        super().__init__()
        self.body, self.shortcut = body, shortcut

    def forward(self, x: Tensor) -> Tensor:
        """body(x) + shortcut(x)."""
        return cast("Tensor", self.body(x) + self.shortcut(x))


def sequential(network: Network) -> nn.Module:
    """The network as an `nn.Sequential` with the same flat parameter order."""
    return _chain(network.layers, network.input_shape)


def seeded(module: nn.Module) -> nn.Module:
    """The same module with every `nn.Dropout` replaced by :class:`SeededDropout`, in place."""
    for name, child in list(module.named_children()):
        if type(child) is nn.Dropout and child.p < 1.0:
            setattr(module, name, SeededDropout(child.p))
        else:
            seeded(child)
    return SeededDropout(module.p) if type(module) is nn.Dropout and module.p < 1.0 else module


def begin_masks(module: nn.Module, key: int) -> None:
    """A client with this key starts its training: all masks from their beginning."""
    found = [m for m in module.modules() if isinstance(m, SeededDropout)]
    for layer, m in enumerate(found):
        m.begin(key, layer)


def _chain(layers: tuple[Layer, ...], shape: tuple[int, ...]) -> nn.Module:
    shapes = Network(shape, layers).shapes
    return nn.Sequential(*(_module(layer, before) for layer, before in zip(layers, shapes, strict=False)))


def _module(layer: Layer, shape: tuple[int, ...]) -> nn.Module:
    match layer:
        case networks.Conv(out, kernel, padding, stride, bias):
            return nn.Conv2d(shape[0], out, kernel, stride, padding, bias=bias)
        case networks.Linear(out, bias):
            return nn.Linear(shape[0], out, bias)
        case networks.ReLU():
            return nn.ReLU()
        case networks.MaxPool(size, stride, padding):
            return nn.MaxPool2d(size, stride or size, padding)
        case networks.AvgPool(size, stride):
            return nn.AvgPool2d(size, stride or size)
        case networks.GlobalAvgPool():
            return nn.AdaptiveAvgPool2d(1)
        case networks.GroupNorm(groups, eps):
            return nn.GroupNorm(groups, shape[0], eps)
        case networks.BatchNorm(eps, momentum):
            return nn.BatchNorm2d(shape[0], eps, momentum)
        case networks.Dropout(p):
            return SeededDropout(p)
        case networks.Residual(body, shortcut):
            return ResidualSum(_chain(body, shape), _chain(shortcut, shape))
        case networks.Flatten():
            return nn.Flatten()
