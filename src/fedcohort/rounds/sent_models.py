"""Asynchronous rounds: the models that clients began with, each kept while somebody who got it is out.

An update says what a client changed, not what it has: its model is the one that it was sent plus the update, and by the
time that it lands the server's own has moved.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcohort.protocols import Method, ModelReader
from fedcohort.types import Array, Arrays, Index, Model, Real

REBUILT = frozenset({"weights", "model_gain"})  # signals of a client's own model


def whole(model: Model) -> Real:
    """Parameters and buffers in one vector."""
    return np.concatenate([model.params, model.buffers]) if model.buffers.size else model.params


def reads_models(method: Method) -> bool:
    """Whether the method looks at the clients' own models."""
    return isinstance(method, ModelReader) and method.reads_models


class SentModels:
    """Whole models by their version.

    >>> sent = SentModels()
    >>> sent.keep(3, Model(np.zeros(2)))
    >>> sent.of(np.array([3, 4]), np.ones(2)).tolist()
    [[0.0, 0.0], [1.0, 1.0]]
    """

    def __init__(self) -> None:
        self.kept: dict[int, Real] = {}

    def keep(self, version: int, model: Model) -> None:
        """This model is sent out now."""
        self.kept[version] = whole(model)

    def of(self, versions: Index, now: Real) -> Real:
        """What updates of these versions were computed on: one row each, or the vector of `now` where none is kept."""
        if not self.kept or not versions.size:
            return now
        return np.stack([self.kept.get(int(version), now) for version in versions])

    def forget(self, out: Mapping[str, NDArray[Any]]) -> None:
        """Keep only what those have that are out (rows of `Outstanding`)."""
        needed = set(out["version"].tolist()) if out else set()
        self.kept = {version: model for version, model in self.kept.items() if version in needed}

    def state_dict(self) -> Arrays:
        """By version."""
        return {str(version): model for version, model in self.kept.items()}

    def load_state_dict(self, arrays: Mapping[str, Array]) -> None:
        """Inverse of :meth:`state_dict`."""
        self.kept = {int(version): model for version, model in arrays.items()}
