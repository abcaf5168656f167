"""The engine: hands each client to a thread, which trains it without the interpreter.

A client is sequential inside one thread and shares nothing with the others but what nobody writes, so the bytes do
not depend on the number of workers. Evaluation of one model packs the samples of all clients into full blocks: a
sample's loss does not depend on its neighbours.
"""

from __future__ import annotations

import os
import queue
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcohort.core.constraints import CountOrZero
from fedcohort.engines.client_signals import collect, part_of
from fedcohort.engines.dropout_masks import client_key
from fedcohort.engines.image_moves import Moves, moves_of
from fedcohort.engines.interface import ClientData, LossStats, batch_order
from fedcohort.engines.losses import CROSS_ENTROPY, log_softmax
from fedcohort.engines.networks import Network
from fedcohort.engines.steps import check_plan, sample_weight
from fedcohort.errors import TrainingError, check, checked
from fedcohort.protocols import Trained
from fedcohort.types import Index, Model, Objective, Plan, Real, Updates

from .buffer_pool import BufferPool
from .client_job import ClientJob, padded_copy
from .workspace import BLOCK

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Space = Any  # memory of one worker, as the runner makes it

SHARE = 8 * BLOCK  # samples that one worker evaluates at a time
_NONE, _STILL = np.empty(0, np.float32), np.empty((0, 0, 3), np.int64)


def default_workers() -> int:
    """Processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def runner_of(network: Network) -> Any:
    """What runs this network: as stages where they suffice (faster), else as a graph of steps.

    Raises TrainingError if neither can.
    """
    from .stage_runner import StageRunner

    try:
        return StageRunner(network)
    except TrainingError:
        from .graph_runner import GraphRunner

        return GraphRunner(network)


class FusedEngine:
    """Trains networks of the layers of :mod:`fedcohort.engines.networks` in Numba, one client per thread."""

    name = "fused"

    @checked
    def __init__(
        self, network: Network, data: ClientData, workers: CountOrZero = 0, moves: Moves | None = None
    ) -> None:
        """`workers=0` means one per processor; `moves` augments. Raises TrainingError if a layer does not qualify."""
        self._runner = runner_of(network)
        self._network = network
        self._known = network.fresh(np.random.default_rng(0)).buffers  # of the model last trained
        self._data, self._draw = data, moves
        self._x = np.ascontiguousarray(data.x.reshape(len(data.x), -1), np.float32)
        self._image = (data.x.shape[-2], data.x.shape[-1]) if data.x.ndim == 4 else (1, 1)
        self._classes = network.classes
        self.workers = workers or default_workers()
        self.n_params = network.n_params
        self.last_layer = network.last_layer
        self._spaces: queue.SimpleQueue[Space] = queue.SimpleQueue()
        self._buffers = BufferPool()
        self._threads: ThreadPoolExecutor | None = None

    def train(self, model: Model, clients: Index, plan: Plan) -> Trained:
        """Local training of each client from this model."""
        m, sizes = clients.size, self._data.train.sizes[clients]
        check_plan(plan, m, self.n_params)
        start, self._known = self._weights(model.params), self._statistics(model.buffers)
        delta = self._buffers.take(m, self.n_params)
        running = np.repeat(self._known[None], m, axis=0)
        steps, stats = np.zeros(m, np.int64), np.zeros((m, 3))
        epochs, lr = plan.epochs_of(m), plan.lr_of(m)

        def one(row: int, space: Space) -> bool:
            job = self._job(start, delta[row], running[row], int(clients[row]), row, plan, int(epochs[row]), stats[row])
            job.rate[0] = lr[row]
            steps[row] = self._train_client(space, job, plan)
            return bool(steps[row] >= 0 and np.isfinite(running[row]).all())

        broken = np.zeros(m, np.bool_)
        delta[sizes == 0] = 0.0
        heavy = np.argsort(-(sizes * epochs), kind="stable")
        heavy = heavy[sizes[heavy] > 0]
        broken[heavy] = ~self._spread(one, heavy)
        delta[broken] = 0.0
        taken = np.where(steps < 0, ~steps, steps)
        running[broken], counters = self._known, None
        if model.counters.size:
            counters = model.counters + np.where(broken, 0, taken)[:, None]
        buffers = running if running.size else None
        updates = Updates(clients, delta, sizes.astype(np.float64), taken, buffers, counters)
        n = np.where(stats[:, 2] > 0, stats[:, 2], np.nan)
        none = np.full(m, np.nan)
        first = LossStats(stats[:, 0] / n, stats[:, 1] / n, none, stats[:, 2].astype(np.int64))
        return collect(self, self._data, model, plan, updates, first, broken)

    def losses(self, model: Model, clients: Index, part: str, objective: Objective) -> LossStats:
        """Evaluate one model on each client's "train" or "validation" part."""
        owned = part_of(self._data, part)
        sizes = owned.sizes[clients]
        end = np.cumsum(sizes)
        at = np.arange(int(sizes.sum())) + np.repeat(owned.start[clients] - (end - sizes), sizes)
        loss, hit = self._evaluate(model, owned.index[at], owned.label[at], objective)
        return _by_client(loss, hit, sizes)

    def losses_each(self, params: Real, clients: Index, part: str, buffers: Real | None = None) -> LossStats:
        """Cross-entropy of one model per client, (m, p), on the client's own data."""
        owned, weights = part_of(self._data, part), np.ascontiguousarray(params, np.float32)
        sizes = owned.sizes[clients]
        end = np.cumsum(sizes)
        loss, hit = np.empty(int(sizes.sum()), np.float32), np.empty(int(sizes.sum()), np.float32)

        def one(row: int, space: Space) -> bool:
            mine, out = owned.of(int(clients[row])), slice(int(end[row] - sizes[row]), int(end[row]))
            rows, label = owned.index[mine], owned.label[mine]
            stats = self._known if buffers is None else np.array(buffers[row], np.float32)
            weight, o = padded_copy(weights[row]), _vector(CROSS_ENTROPY)
            self._runner.evaluate(space, weight, stats, self._x, rows, label, o, loss[out], hit[out])
            return bool(np.isfinite(loss[out]).all())

        self._spread(one, np.flatnonzero(sizes > 0))
        return _by_client(loss, hit, sizes)

    def gradients(
        self, model: Model, clients: Index, *, last_layer: bool = False, objective: Objective | None = None
    ) -> Real:
        """Full-batch gradient of each client at this model; zero for clients without samples."""
        owned, weights, stats = self._data.train, self._weights(model.params), self._statistics(model.buffers)
        kept = self.last_layer if last_layer else slice(0, self.n_params)
        out = np.zeros((clients.size, kept.stop - kept.start), np.float32)

        def one(row: int, space: Space) -> bool:
            mine = owned.of(int(clients[row]))
            n = mine.stop - mine.start
            even = np.full(n, 1.0 / n, np.float32)
            rows, label, o = owned.index[mine], owned.label[mine], _vector(objective or CROSS_ENTROPY)
            _, found = self._runner.gradient(space, weights, stats, self._x, rows, label, o, even, None)
            out[row] = found[kept]
            return bool(np.isfinite(found).all())

        self._spread(one, np.flatnonzero(owned.sizes[clients] > 0))
        return out

    def logits(self, params: Real, x: NDArray[np.float32], buffers: Real | None = None) -> Real:
        """Logits of k models, given as (k, p), on inputs x: (k, n, classes)."""
        weights = [padded_copy(row) for row in np.asarray(params, np.float32)]
        running = [self._known] if buffers is None else list(np.array(buffers, np.float32))
        flat = np.ascontiguousarray(x.reshape(len(x), -1), np.float32)
        out = np.empty((len(weights), len(flat), self._classes), np.float32)
        shares = -(-len(flat) // SHARE)

        def one(job: int, space: Space) -> bool:
            k, b = job // shares, job % shares * SHARE
            rows = np.arange(b, min(b + SHARE, len(flat)))
            stats, here = running[min(k, len(running) - 1)], out[k, b : b + rows.size]
            self._runner.infer(space, weights[k], stats, flat, rows, here)
            return bool(np.isfinite(here).all())

        self._spread(one, np.arange(len(weights) * shares))
        return out

    def soft_gradient(
        self, params: Real, x: NDArray[np.float32], target: Real, buffers: Real | None = None
    ) -> tuple[float, Real]:
        """Mean cross-entropy against soft targets (n, classes), and its gradient (p,)."""
        weights, n = self._weights(params), len(x)
        stats = self._known if buffers is None else self._statistics(buffers)
        flat = np.ascontiguousarray(x.reshape(n, -1), np.float32)
        mass = np.asarray(target, np.float64).sum(axis=1)
        goal = (np.asarray(target, np.float64) / np.where(mass > 0, mass, 1.0)[:, None]).astype(np.float32)
        share = (mass / n).astype(np.float32)
        starts = range(0, n, SHARE)
        loss, found = np.zeros(len(starts)), np.zeros((len(starts), self.n_params), np.float32)
        soft = _vector(Objective(ce=0.0, pseudo=1.0))

        def one(job: int, space: Space) -> bool:
            rows = np.arange(starts[job], min(starts[job] + SHARE, n))
            label = np.zeros(rows.size, np.int64)
            each, found[job] = self._runner.gradient(
                space, weights, stats, flat, rows, label, soft, share[rows], goal[rows]
            )
            loss[job] = float((each.astype(np.float64) * share[rows]).sum())
            return bool(np.isfinite(found[job]).all())

        self._spread(one, np.arange(len(starts)))
        return float(loss.sum()), found.sum(axis=0, dtype=np.float64).astype(np.float32)

    def close(self) -> None:
        """Give back the threads and their memory."""
        if self._threads is not None:
            self._threads.shutdown()
            self._threads = None
        self._spaces = queue.SimpleQueue()
        self._buffers = BufferPool()

    def _weights(self, params: Real) -> Floats:
        """A copy, with room behind it for kernels that read whole vectors."""
        rule = f"the network has {self.n_params}"
        check(params.shape == (self.n_params,), f"parameters of shape {params.shape}", rule, "use a model of this task")
        return padded_copy(params)

    def _statistics(self, buffers: Real) -> Floats:
        """Running statistics of a model; those of the model last trained, where it comes without."""
        if buffers.size:
            rule = f"the network has {self._network.n_buffers}"
            fits = buffers.shape == (self._network.n_buffers,)
            check(fits, f"buffers of shape {buffers.shape}", rule, "use a model of this task")
            return np.array(buffers, np.float32)
        return self._known

    def _job(
        self, start: Floats, delta: Floats, running: Floats, k: int, row: int, plan: Plan, epochs: int, stats: Doubles
    ) -> ClientJob:
        """What the kernels are told about client k; its rate is still missing."""
        part = self._data.train
        rows, label = part.index[part.of(k)], part.label[part.of(k)]
        order = np.empty((epochs, rows.size), np.int64)
        for epoch in range(epochs):
            order[epoch] = batch_order(rows.size, plan, k, epoch)
        rate = np.array([0.0, plan.momentum, plan.weight_decay, plan.prox, float(plan.optimiser == "adam")])
        frozen = np.empty((0, self._classes), np.float32)
        moves = _STILL if self._draw is None else moves_of(self._draw, plan, k, epochs, rows.size)
        return ClientJob(
            start, delta, running, self._x, rows, label, order, plan.batch_size, rate, _vector(plan.objective), frozen,
            False, _sample_weight(plan, k, rows.size), _correction(plan, row), stats, client_key(plan, k), moves,
            self._image,
        )  # fmt: skip

    def _train_client(self, space: Space, job: ClientJob, plan: Plan) -> int:
        if plan.objective.pseudo:
            logits = np.empty((job.rows.size, self._classes), np.float32)
            self._runner.infer(space, job.start, job.buffers, self._x, job.rows, logits)
            job.frozen, job.given = np.exp(log_softmax(logits)), True
        taken: int = self._runner.train(space, job)
        return taken

    def _evaluate(self, model: Model, rows: Index, label: Index, objective: Objective) -> tuple[Floats, Floats]:
        """Loss and correctness of each sample under one model."""
        weights, stats, o = self._weights(model.params), self._statistics(model.buffers), _vector(objective)
        loss, hit = np.empty((2, rows.size), np.float32)

        def one(job: int, space: Space) -> bool:
            out = slice(job * SHARE, (job + 1) * SHARE)
            self._runner.evaluate(space, weights, stats, self._x, rows[out], label[out], o, loss[out], hit[out])
            return bool(np.isfinite(loss[out]).all())

        self._spread(one, np.arange(-(-rows.size // SHARE)))
        return loss, hit

    def _spread(self, job: Callable[[int, Space], bool], jobs: Index) -> NDArray[np.bool_]:
        """Do all jobs on the workers, in this order; whether each came out finite."""
        waiting = iter(enumerate(jobs.tolist()))  # next() on it is atomic
        fine = np.ones(jobs.size, np.bool_)

        def work() -> None:
            space = self._space()
            for place, which in waiting:
                fine[place] = job(which, space)
                if not fine[place]:  # what a broken client left in the buffers must not meet the next one's zeros
                    space = self._runner.space()
            self._spaces.put(space)

        count = min(self.workers, jobs.size)
        if count <= 1:
            work()
            return fine
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self.workers, thread_name_prefix="fused")
        for done in [self._threads.submit(work) for _ in range(count)]:
            done.result()
        return fine

    def _space(self) -> Space:
        try:
            return self._spaces.get_nowait()
        except queue.Empty:
            return self._runner.space()


def _vector(o: Objective) -> Doubles:
    return np.array([o.ce, o.pseudo, o.rce, o.floor, o.smoothing])


def _sample_weight(plan: Plan, client: int, n: int) -> Floats:
    given = sample_weight(plan, client, n)
    return _NONE if given is None else given


def _correction(plan: Plan, row: int) -> Floats:
    if plan.correction is None:
        return _NONE
    given: Any = plan.correction
    return np.ascontiguousarray(given if given.ndim == 1 else given[row], np.float32)


def _by_client(loss: Floats, hit: Floats, sizes: Index) -> LossStats:
    """Means per client of samples that lie client after client."""
    owner = np.repeat(np.arange(sizes.size), sizes)
    each = loss.astype(np.float64)
    n = np.where(sizes > 0, sizes, np.nan)
    total, square, right = (np.bincount(owner, v, sizes.size) / n for v in (each, each * each, hit))
    return LossStats(total, square, right, sizes)
