"""What a simulated client computes on its own data for a method, at parameters of the method's choice."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedcohort.engines.interface import ClientData, Engine
from fedcohort.engines.losses import cross_entropy, log_softmax
from fedcohort.errors import UnknownName
from fedcohort.types import Index, Part, Real


class ArrayClientEvaluator:
    """Per-sample losses and weighted gradients of single clients, through the engine that trains them."""

    def __init__(self, engine: Engine, data: ClientData) -> None:
        self._engine, self._data = engine, data

    def size(self, client: int, part: str) -> int:
        """Samples of this client in this part."""
        return int(self._part(part).sizes[client])

    def losses(self, params: Real, client: int, part: str, buffers: Real | None = None) -> NDArray[np.float64]:
        """Cross-entropy of every sample, in the order of `Plan.sample_weight`."""
        x, label = self._samples(client, part)
        if not label.size:
            return np.empty(0)
        own = None if buffers is None or not buffers.size else buffers[None]
        logits = self._engine.logits(np.asarray(params, np.float32)[None], x, own)[0]
        return np.asarray(cross_entropy(log_softmax(np.asarray(logits, np.float64)), label), np.float64)

    def gradient(
        self, params: Real, client: int, part: str, weight: Real | None = None, buffers: Real | None = None
    ) -> Real:
        """Gradient of (1 / n) sum_j weight_j loss_j: soft targets that carry the weights."""
        x, label = self._samples(client, part)
        if not label.size:
            return np.zeros(np.size(params), np.float32)
        target = np.zeros((label.size, self._data.classes), np.float32)
        target[np.arange(label.size), label] = 1.0 if weight is None else weight
        own = () if buffers is None or not buffers.size else (buffers,)
        return self._engine.soft_gradient(np.asarray(params, np.float32), x, target, *own)[1]

    def _samples(self, client: int, part: str) -> tuple[NDArray[np.float32], Index]:
        owned = self._part(part)
        rows = owned.of(client)
        return self._data.x[owned.index[rows]], owned.label[rows]

    def _part(self, name: str) -> Part:
        if name == "train":
            return self._data.train
        if name == "validation":
            return self._data.validation
        raise UnknownName.among("part", name, ("train", "validation"))
