"""Runs networks of any known layers, as graphs of steps, client by client.

Samples travel in blocks. Statistics of a batch need the whole batch at once, so that a network with batch
normalisation trains in blocks as large as its batches.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedcohort.engines.networks import Network

from . import graph_training as kernel
from .client_job import ClientJob, padded_copy
from .graph_program import Program, program_of
from .local_training import ADAM, MOMENTUM, move
from .moved_images import show_moved

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Index = NDArray[np.int64]

BLOCK = 16  # samples that travel through the network together
_STEP_WORD = 64 * 0x9E3779B97F4A7C15  # how far a client's key moves with every step; see `dropout_masks`
_USERS = (kernel.run_graph, kernel.take_step, kernel.take_change, move)  # the first alone where nothing is learned
_NONE = np.empty(0, np.float32)
_NOBODY = np.empty(0, np.int64)


@dataclass(slots=True)
class GraphSpace:
    """Memory of one worker, for the largest blocks that it has met."""

    program: Program
    floats: Floats
    seen: Index


class GraphRunner:
    """The kernels of a layer graph for one network."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._programs: dict[int, Program] = {}
        self._program(BLOCK)  # refuses what cannot be run

    def space(self) -> GraphSpace:
        """Memory of one worker."""
        program = self._program(BLOCK)
        return GraphSpace(program, *program.workspace())

    def infer(self, space: GraphSpace, weights: Floats, stats: Floats, x: Floats, rows: Index, out: Floats) -> None:
        """Logits (n, classes)."""
        self._run(space, weights, _NONE, stats, x, rows, _NOBODY, _Samples.of(0), out, kernel.LOGITS, BLOCK)

    def evaluate(
        self, space: GraphSpace, weights: Floats, stats: Floats, x: Floats, rows: Index, label: Index, o: Doubles,
        loss: Floats, hit: Floats,
    ) -> None:  # fmt: skip
        """Objective and hit of each sample."""
        samples = _Samples(np.empty(rows.size, np.float32), loss, hit, o)
        self._run(space, weights, _NONE, stats, x, rows, label, samples, None, kernel.LOSSES, BLOCK)

    def gradient(
        self, space: GraphSpace, weights: Floats, stats: Floats, x: Floats, rows: Index, label: Index, o: Doubles,
        scale: Floats, frozen: Floats | None,
    ) -> tuple[Floats, Floats]:  # fmt: skip
        """Per-sample losses, and the sum of scaled gradients, with running statistics."""
        found = padded_copy(np.empty(weights.size, np.float32))
        samples = _Samples.of(rows.size, o, scale, frozen)
        self._run(space, weights, found, stats, x, rows, label, samples, None, kernel.GRADIENT, BLOCK)
        return samples.loss, found

    def train(self, space: GraphSpace, job: ClientJob) -> int:
        """Local training; steps taken, as their complement where the loss or the weights stopped being finite."""
        w, n = padded_copy(job.start), job.rows.size
        g = padded_copy(w)
        rate = job.rate
        first = np.zeros(w.size if rate[MOMENTUM] or rate[ADAM] else 0, np.float32)
        second = np.zeros(w.size if rate[ADAM] else 0, np.float32)
        block = min(job.batch, n) if self._network.normalised else BLOCK
        taken = 0
        for epoch, order in enumerate(job.order):
            for b in range(0, n, job.batch):
                at = order[b : b + job.batch]
                scale = np.full(at.size, 1.0 / at.size, np.float32)
                if job.weight.size:
                    scale = job.weight[at] / np.float32(at.size)
                samples = _Samples.of(at.size, job.objective, scale, job.frozen[at] if job.given else None)
                key = (job.key + taken * _STEP_WORD) & ((1 << 64) - 1)
                x, rows = _shown(job, epoch, b, job.rows[at])
                self._run(space, w, g, job.buffers, x, rows, job.label[at], samples, None, kernel.GRADIENT, block, key)
                taken += 1
                hard = samples.hard.astype(np.float64)
                if epoch == 0:
                    job.stats += hard.sum(), (hard * hard).sum(), hard.size
                if not math.isfinite(hard.sum()):
                    return ~taken
                kernel.take_step(move.address, w, g, job.start, first, second, job.correction, rate, taken)
        return taken if kernel.take_change(w, job.start, job.delta) else ~taken

    def _program(self, room: int) -> Program:
        if room not in self._programs:
            self._programs[room] = program_of(self._network, room)
        return self._programs[room]

    def _run(
        self, space: GraphSpace, w: Floats, g: Floats, stats: Floats, x: Floats, rows: Index, label: Index,
        samples: _Samples, out: Floats | None, want: int, block: int, key: int | None = None,
    ) -> None:  # fmt: skip
        if space.program.room < block:
            space.program = self._program(block)
            space.floats, space.seen = space.program.workspace()
        p = space.program
        p.prepare(want == kernel.GRADIENT, _USERS if want == kernel.GRADIENT else _USERS[:1])
        classes = self._network.classes
        frozen = np.empty((0, classes), np.float32) if samples.frozen is None else samples.frozen
        kernel.run_graph(
            p.steps, p.parts, p.first, p.last, p.edged, space.floats, space.seen, w, g, stats, x, rows, label,
            samples.objective, frozen, samples.frozen is not None, samples.scale, samples.hard, samples.loss,
            samples.hit, np.empty((0, classes), np.float32) if out is None else out, block, want,
            int(key is not None), _signed(key or 0),
        )  # fmt: skip


@dataclass(slots=True)
class _Samples:
    """What is wanted of some samples, and what is found."""

    hard: Floats
    loss: Floats
    hit: Floats
    objective: Doubles
    scale: Floats = field(default_factory=lambda: _NONE)
    frozen: Floats | None = None

    @staticmethod
    def of(n: int, o: Doubles | None = None, scale: Floats = _NONE, frozen: Floats | None = None) -> _Samples:
        """Room for n samples."""
        hard, loss, hit = np.empty((3, n), np.float32)
        return _Samples(hard, loss, hit, np.zeros(5) if o is None else o, scale, frozen)


def _shown(job: ClientJob, epoch: int, b: int, rows: Index) -> tuple[Floats, Index]:
    """The inputs of a batch and its rows in them: as they are, or moved."""
    if not job.moves.size:
        return job.x, rows
    out = np.empty((rows.size, job.x.shape[1]), np.float32)
    show_moved(job.x, rows, job.moves[epoch, b : b + rows.size], *job.image, out)
    return out, np.arange(rows.size)


def _signed(word: int) -> int:
    """The same 64 bits as a signed number."""
    return word - (1 << 64) if word >> 63 else word
