"""Networks as plain lists and numbers, as JSON can hold them, and back."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from fedcohort.engines import networks
from fedcohort.engines.networks import Layer, Network


def to_plain(network: Network) -> list[Any]:
    """The input's shape, and every layer's name and fields; layers within layers likewise.

    >>> to_plain(networks.mlp(4, classes=2))
    [[4], [['Linear', {'out': 2, 'bias': True}]]]
    >>> block = networks.resnet((3, 8, 8), (4, 8), classes=2)
    >>> from_plain(to_plain(block)) == block
    True
    """
    return [list(network.input_shape), _plain(network.layers)]


def _plain(layers: tuple[Layer, ...]) -> list[Any]:
    made = []
    for layer in layers:
        given = {f.name: getattr(layer, f.name) for f in fields(layer)}
        made.append([type(layer).__name__, {k: _plain(v) if isinstance(v, tuple) else v for k, v in given.items()}])
    return made


def from_plain(plain: list[Any]) -> Network:
    """Inverse of :func:`to_plain`."""
    return Network(tuple(plain[0]), _layers(plain[1]))


def _layers(plain: list[Any]) -> tuple[Layer, ...]:
    return tuple(
        getattr(networks, name)(**{k: _layers(v) if isinstance(v, list) else v for k, v in given.items()})
        for name, given in plain
    )
