"""Runs networks of convolutions, ReLU, max-pools and linear layers, as stages, client by client."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcohort.engines.networks import Network

from . import local_training as kernel
from .client_job import ClientJob, padded_copy
from .workspace import layout_of

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Index = NDArray[np.int64]
Space = tuple[Floats, NDArray[np.int8], Index]

_NONE, _NOBODY, _NO_OBJECTIVE = np.empty(0, np.float32), np.empty(0, np.int64), np.zeros(5)


class StageRunner:
    """The kernels of stages for one network. Running statistics do not occur in it: `stats` is empty."""

    def __init__(self, network: Network) -> None:
        self._layout = layout_of(network)
        self._classes = network.classes
        self._prepared: set[Any] = set()

    def space(self) -> Space:
        """Memory of one worker."""
        return self._layout.workspace()

    def infer(self, space: Space, weights: Floats, stats: Floats, x: Floats, rows: Index, out: Floats) -> None:
        """Logits (n, classes)."""
        kernel.evaluate(
            self._table(kernel.evaluate), *space, weights, x, rows, _NOBODY, _NO_OBJECTIVE, _NONE, _NONE, _NONE, out
        )  # fmt: skip

    def evaluate(
        self, space: Space, weights: Floats, stats: Floats, x: Floats, rows: Index, label: Index, o: Doubles,
        loss: Floats, hit: Floats,
    ) -> None:  # fmt: skip
        """Objective and hit of each sample."""
        hard = np.empty(rows.size, np.float32)
        none = np.empty((0, self._classes), np.float32)
        kernel.evaluate(self._table(kernel.evaluate), *space, weights, x, rows, label, o, hard, loss, hit, none)

    def gradient(
        self, space: Space, weights: Floats, stats: Floats, x: Floats, rows: Index, label: Index, o: Doubles,
        scale: Floats, frozen: Floats | None,
    ) -> tuple[Floats, Floats]:  # fmt: skip
        """Per-sample losses, and the sum of scaled gradients."""
        found = padded_copy(weights)
        hard, loss, hit = np.empty((3, rows.size), np.float32)
        given = np.empty((0, self._classes), np.float32) if frozen is None else frozen
        kernel.gradient(
            self._table(kernel.gradient), *space, weights, found, x, rows, label, o, given, frozen is not None, scale,
            hard, loss, hit,
        )  # fmt: skip
        return loss, found

    def train(self, space: Space, job: ClientJob) -> int:
        """Local training; steps taken, as their complement where the loss or the weights stopped being finite."""
        taken: int = kernel.train(
            self._table(kernel.train), *space, job.start, job.delta, job.x, job.rows, job.label, job.order, job.batch,
            job.rate, job.objective, job.frozen, job.given, job.weight, job.correction, job.stats,
            job.moves, *job.image,
        )  # fmt: skip
        return taken

    def _table(self, use: Any) -> Index:
        """The tables, after what `use` needs was compiled."""
        if use not in self._prepared:
            kernel.prepare(self._layout.table, use)
            self._prepared.add(use)
        return self._layout.table
