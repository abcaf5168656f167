"""The numpy engine: softmax regression and perceptrons, the whole cohort as stacked matrices, no torch.

Bits do not depend on who else is in the cohort: every client is a matrix of its own in the batched products, and
its shapes are a function of the client alone (see `batch_stacks`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcohort.core.threads import in_one_thread
from fedcohort.engines import losses as objectives
from fedcohort.engines.batch_stacks import Stack, in_order, stacks
from fedcohort.engines.client_signals import collect, part_of
from fedcohort.engines.dense import Dense
from fedcohort.engines.interface import ClientData, LossStats, batch_order
from fedcohort.engines.networks import Network
from fedcohort.engines.steps import Stepper, check_plan, sample_weight
from fedcohort.protocols import Trained
from fedcohort.types import Index, Model, Objective, Part, Plan, Real, Updates

CHUNK = 64  # samples of a client that are evaluated together
ROOM = 1 << 22  # input values of a stack of batches held at once

Floats = NDArray[np.floating[Any]]


@dataclass(slots=True)
class _Cohort:
    """What training fills, rows in the order of the clients."""

    delta: NDArray[np.float32]
    steps: Index
    broken: NDArray[np.bool_]
    loss: NDArray[np.float64]  # sums over the first epoch
    square: NDArray[np.float64]
    count: Index


class NumpyEngine:
    """Trains MLPs and softmax regressions of many clients at once in stacked numpy arrays; needs nothing else."""

    name = "numpy"

    def __init__(self, network: Network, data: ClientData) -> None:
        self._dense = Dense(network)
        self._data = data
        self._x = data.x.reshape(len(data.x), -1)
        self._classes = network.classes
        self.n_params = network.n_params
        self.last_layer = network.last_layer

    @in_one_thread
    def train(self, model: Model, clients: Index, plan: Plan) -> Trained:
        """Local training of each client from this model."""
        m = clients.size
        check_plan(plan, m, self.n_params)
        part, epochs = self._data.train, plan.epochs_of(m)
        out = _Cohort(
            np.zeros((m, self.n_params), np.float32),
            np.zeros(m, np.int64),
            np.zeros(m, np.bool_),
            np.zeros(m),
            np.zeros(m),
            np.zeros(m, np.int64),
        )

        def order(n: int, client: int, epoch: int) -> Index:
            return batch_order(n, plan, client, epoch)

        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            for stack in stacks(part, clients, plan.batch_size, epochs, order, self._room()):
                self._train_stack(model, clients, plan, stack, out)
        out.delta[out.broken] = 0.0
        weight = part.sizes[clients].astype(np.float64)
        updates = Updates(clients, out.delta, weight, out.steps)
        first = _stats(out.loss, out.square, np.zeros(m), out.count)
        return collect(self, self._data, model, plan, updates, first, out.broken)

    @in_one_thread
    def losses(self, model: Model, clients: Index, part: str, objective: Objective) -> LossStats:
        """Evaluate one model on each client's "train" or "validation" part."""
        return self._evaluate(model.params[None], clients, part_of(self._data, part), objective)

    @in_one_thread
    def losses_each(self, params: Real, clients: Index, part: str, buffers: Real | None = None) -> LossStats:
        """Cross-entropy of one model per client, (m, p), on the client's own data."""
        return self._evaluate(params, clients, part_of(self._data, part), objectives.CROSS_ENTROPY)

    @in_one_thread
    @np.errstate(over="ignore", invalid="ignore")
    def gradients(
        self, model: Model, clients: Index, *, last_layer: bool = False, objective: Objective | None = None
    ) -> Real:
        """Full-batch gradient of each client at this model; zero for clients without samples."""
        out = np.zeros((clients.size, self.n_params), np.float32)
        params = model.params[None]
        for stack in self._sweeps(self._data.train, clients):
            mean = (1.0 / np.diff(stack.offset)).astype(np.float32)
            buffer = np.empty((stack.rows.size, self.n_params), np.float32)
            total = np.zeros_like(buffer)
            for s in range(stack.at.shape[1]):
                active = stack.active(s)
                acts, log_p, labels = self._pass(params, self._data.train, stack, s, active)
                dz = objectives.gradient(objective or objectives.CROSS_ENTROPY, log_p, labels)
                dz *= (stack.valid(s, active) * mean[:active, None])[..., None]
                self._dense.backward(params, acts, dz, buffer[:active])
                total[:active] += buffer[:active]
            out[stack.rows] = total
        return out[:, self.last_layer] if last_layer else out

    @in_one_thread
    @np.errstate(over="ignore", invalid="ignore")
    def logits(self, params: Real, x: NDArray[np.float32], buffers: Real | None = None) -> Real:
        """Logits of k models, given as (k, p), on inputs x: (k, n, classes)."""
        flat = x.reshape(len(x), -1)
        out = np.empty((len(params), len(flat), self._classes), np.float32)
        weights = np.asarray(params, np.float32)
        for k in range(0, len(flat), 1024):
            out[:, k : k + 1024] = self._dense.forward(weights, flat[None, k : k + 1024])[-1]
        return out

    @in_one_thread
    @np.errstate(over="ignore", invalid="ignore")
    def soft_gradient(
        self, params: Real, x: NDArray[np.float32], target: Real, buffers: Real | None = None
    ) -> tuple[float, Real]:
        """Mean cross-entropy against soft targets (n, classes), and its gradient (p,); its networks have no buffers."""
        del buffers
        weights, goal = np.asarray(params, np.float32)[None], np.asarray(target, np.float32)[None]
        acts = self._dense.forward(weights, x.reshape(1, len(x), -1))
        log_p = objectives.log_softmax(acts[-1])
        loss = -float((goal * log_p).sum(dtype=np.float64)) / len(x)
        dz = (np.exp(log_p) * goal.sum(axis=-1, keepdims=True) - goal) / np.float32(len(x))
        out = np.empty((1, self.n_params), np.float32)
        self._dense.backward(weights, acts, dz, out)
        return loss, out[0]

    def close(self) -> None:
        """Nothing to give back."""

    def _room(self) -> int:
        return max(1, ROOM // self._x.shape[1])

    def _sweeps(self, part: Part, clients: Index) -> list[Stack]:
        once = np.ones(clients.size, np.int64)
        return list(stacks(part, clients, CHUNK, once, in_order, self._room()))

    def _pass(
        self, params: Floats, part: Part, stack: Stack, step: int, active: int
    ) -> tuple[list[Floats], Floats, Index]:
        """Activations, log-probabilities and labels of one batch of each active client."""
        sample = stack.sample[stack.at[:active, step]]
        acts = self._dense.forward(params, self._x[part.index[sample]])
        return acts, objectives.log_softmax(acts[-1]), part.label[sample]

    def _train_stack(self, model: Model, clients: Index, plan: Plan, stack: Stack, out: _Cohort) -> None:
        stepper = Stepper(model.params, plan, stack.rows, clients.size)
        gradient = np.empty_like(stepper.weights)
        weight = _sample_weights(plan, clients[stack.rows], stack)
        frozen = self._predictions(model, stack) if plan.objective.pseudo else None
        rows = stack.rows
        for s in range(stack.at.shape[1]):
            active = stack.active(s)
            params, at = stepper.weights[:active], stack.at[:active, s]
            acts, log_p, labels = self._pass(params, self._data.train, stack, s, active)
            _note(out, stack, s, active, objectives.cross_entropy(log_p, labels))
            share = stack.share(s, active)
            if weight is not None:
                share *= weight[at]
            dz = objectives.gradient(plan.objective, log_p, labels, None if frozen is None else frozen[at])
            dz *= share[..., None]
            self._dense.backward(params, acts, dz, gradient[:active])
            stepper.step(gradient, active)
        out.delta[rows] = stepper.weights - model.params
        out.steps[rows] = stack.steps
        out.broken[rows] |= ~np.isfinite(stepper.weights).all(axis=1)

    def _predictions(self, model: Model, stack: Stack) -> Floats:
        """Probabilities of the broadcast model on every sample of the stack, in the stack's order."""
        sizes = np.diff(stack.offset)
        train = self._data.train
        whole = Part(stack.offset, train.index[stack.sample], train.label[stack.sample], stack.sample)
        out = np.empty((stack.sample.size, self._classes), np.float32)
        for sweep in self._sweeps(whole, np.arange(sizes.size)):
            for s in range(sweep.at.shape[1]):
                active = sweep.active(s)
                _, log_p, _ = self._pass(model.params[None], whole, sweep, s, active)
                valid = sweep.valid(s, active)
                out[sweep.sample[sweep.at[:active, s][valid]]] = np.exp(log_p[valid])
        return out

    def _evaluate(self, params: Floats, clients: Index, part: Part, objective: Objective) -> LossStats:
        loss, square, right = (np.zeros(clients.size) for _ in range(3))
        with np.errstate(over="ignore", invalid="ignore"):
            for stack in self._sweeps(part, clients):
                mine = params if len(params) == 1 else params[stack.rows]
                for s in range(stack.at.shape[1]):
                    active = stack.active(s)
                    _, log_p, labels = self._pass(mine[:active], part, stack, s, active)
                    valid, rows = stack.valid(s, active), stack.rows[:active]
                    each = np.where(valid, objectives.losses(objective, log_p, labels), 0.0).astype(np.float64)
                    loss[rows] += each.sum(axis=1)
                    square[rows] += (each * each).sum(axis=1)
                    right[rows] += (valid & (log_p.argmax(axis=-1) == labels)).sum(axis=1)
        return _stats(loss, square, right, part.sizes[clients])


def _note(out: _Cohort, stack: Stack, step: int, active: int, hard: Floats) -> None:
    """Add one batch's cross-entropy to the sums of clients in their first epoch; mark those that broke."""
    hard = np.where(stack.valid(step, active), hard, 0.0).astype(np.float64)
    total, rows = hard.sum(axis=1), stack.rows[:active]
    out.broken[rows] |= ~np.isfinite(total)
    early = stack.first[:active] > step
    out.loss[rows[early]] += total[early]
    out.square[rows[early]] += (hard * hard).sum(axis=1)[early]
    out.count[rows[early]] += stack.count[:active, step][early]


def _stats(loss: Floats, square: Floats, right: Floats, count: Index) -> LossStats:
    n = np.where(count > 0, count, np.nan)
    return LossStats(loss / n, square / n, right / n, count)


def _sample_weights(plan: Plan, clients: Index, stack: Stack) -> NDArray[np.float32] | None:
    """One weight per sample of the stack, 1 where the plan names none."""
    if not plan.sample_weight:
        return None
    out = np.ones(stack.sample.size, np.float32)
    for i, k in enumerate(clients.tolist()):
        given = sample_weight(plan, k, int(stack.offset[i + 1] - stack.offset[i]))
        if given is not None:
            out[stack.offset[i] : stack.offset[i + 1]] = given
    return out
