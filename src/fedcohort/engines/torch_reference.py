"""The reference engine: plain PyTorch, one client after the other, any `nn.Module`. The semantics of all engines.

A model is a `Network` (built as `nn.Sequential`), a factory of modules, or a `Recipe` of either. Trainable parameters
are one flat vector in the order of `parameters()`; floating buffers (batch-norm statistics) and integer ones (counters)
are kept apart. Training runs in train mode. Everything that only evaluates (losses, gradients, frozen predictions,
logits) runs in eval mode, so that evaluation changes no statistics. A last batch of one sample is left out where the
module cannot be trained on one (BatchNorm1d); one sample that cannot be evaluated alone is evaluated by the statistics
it has alone.

On any device: inputs and targets are sent there once, and what the clients learned comes back once per call of `train`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from fedcohort.engines.client_signals import collect, part_of
from fedcohort.engines.dropout_masks import client_key
from fedcohort.engines.image_moves import batch_generator
from fedcohort.engines.interface import ClientData, LossStats, batch_order
from fedcohort.engines.losses import CROSS_ENTROPY
from fedcohort.engines.recipe import Modeled, recipe_of
from fedcohort.engines.steps import BETA1, BETA2, EPS, check_plan, sample_weight
from fedcohort.engines.torch_device import (
    Resident,
    autocast,
    out_of_memory,
    resolve,
    seeded,
    sum_type,
    too_large,
    torch_package,
)
from fedcohort.engines.torch_losses import Criterion
from fedcohort.engines.torch_modules import Flat, build, flat_array
from fedcohort.engines.torch_rehearsal import rehearse
from fedcohort.errors import FedcohortError, TrainingError, check
from fedcohort.protocols import Trained
from fedcohort.types import Index, Model, Objective, Part, Plan, Real, Updates

if TYPE_CHECKING:
    from torch import Tensor

CHUNK = 512  # samples that are evaluated together
SAID = 200  # characters of an exception that become a client's reason


@dataclass(slots=True)
class _Sums:
    """Sums of one client's losses, on the device: over its first epoch, and over everything."""

    loss: Any = 0.0
    square: Any = 0.0
    count: int = 0
    total: Any = 0.0  # not finite as soon as one loss was not

    def add(self, plain: Tensor, n: int, kind: Any, first: bool) -> None:
        """One batch of n samples, with the plain loss of each or of all."""
        hard = plain.to(kind)
        batch = hard.sum() if hard.ndim else hard * n
        self.total = self.total + batch
        if first:
            self.loss = self.loss + batch
            self.square = self.square + (hard * hard).sum() if hard.ndim else float("nan")
            self.count += n


class Learned:
    """What clients have learned, row by row on the device, and copied to the host once."""

    def __init__(self, torch: Any, flat: Flat, model: Model, m: int, device: str, kind: Any) -> None:
        self._torch, self._flat, self._model, self._kind = torch, flat, model, kind
        self.start = torch.from_numpy(np.array(model.params, np.float32)).to(device)
        self.buffers = torch.from_numpy(np.array(model.buffers)).to(device)
        self.counters = torch.from_numpy(np.array(model.counters)).to(device)
        self.delta = torch.zeros((m, flat.size), dtype=torch.float32, device=device)
        self._floats = self.buffers.repeat(m, 1) if model.buffers.size else None
        self._counts = self.counters.repeat(m, 1) if model.counters.size else None
        self.fine = torch.ones(m, dtype=torch.bool, device=device)
        self.steps, self.sums = np.zeros(m, np.int64), [_Sums() for _ in range(m)]
        self.lost: dict[int, str] = {}  # row -> why its client could not be trained

    def keep(self, row: int) -> None:
        """The module holds what this row's client has learned."""
        params, floats, counts = self._flat.tensors()
        self.delta[row] = params - self.start
        fine = self._torch.isfinite(params).all()
        if self._floats is not None:
            self._floats[row] = floats
            fine = fine & (self._torch.isfinite(floats) | (floats == self.buffers)).all()  # an attention mask has -inf
        if self._counts is not None:
            self._counts[row] = counts
        self.fine[row] = fine & self._torch.isfinite(self._torch.as_tensor(self.sums[row].total))

    def host(self, clients: Index, weight: Real) -> tuple[Updates, LossStats, NDArray[np.bool_]]:
        """Updates, loss statistics of the first epoch, and whose numbers broke; rows that are lost are zero."""
        broken: NDArray[np.bool_] = ~self.fine.cpu().numpy()
        delta = self.delta.cpu().numpy()
        gone = broken.copy()
        gone[list(self.lost)] = True
        delta[gone] = 0.0
        floats = _restored(self._floats, gone, self._model.buffers)
        counts = _restored(self._counts, gone, self._model.counters)
        return Updates(clients, delta, weight, self.steps, floats, counts), self._first_epoch(), broken

    def _first_epoch(self) -> LossStats:
        torch, m = self._torch, len(self.sums)
        values = [
            torch.as_tensor(v, dtype=self._kind, device=self.start.device)
            for s in self.sums
            for v in (s.loss, s.square)
        ]
        count = np.array([s.count for s in self.sums], np.int64)
        found = torch.stack(values).cpu().numpy().astype(np.float64).reshape(m, 2) if m else np.empty((0, 2))
        found /= np.where(count > 0, count, np.nan)[:, None]
        return LossStats(found[:, 0], found[:, 1], np.full(m, np.nan), count)


class ReferenceEngine:
    """Trains any module, client by client, in plain PyTorch: what the other engines must agree with."""

    name = "torch_reference"

    def __init__(self, model: Modeled, data: ClientData, device: str = "cpu", precision: str = "float32") -> None:
        """`device` as in :data:`~fedcohort.engines.interface.DEVICES`; `precision` is that of forward passes."""
        self._torch = torch_package()
        self._recipe, self._data = recipe_of(model), data
        self.device, self.precision = resolve(device), precision
        autocast(self.device, precision)  # refuses what is not there
        self._flat = Flat(build(self._recipe.model).to(self.device))
        self._known = flat_array(self._flat.floats, np.float32)  # buffers of the model last trained
        self._criterion = Criterion(self._recipe.loss, self.device)
        self._resident = Resident(self.device)
        self._sum_type = sum_type(self.device)
        self.n_params = self._flat.size
        self._rehearsed = rehearse(self._flat.module, data, lambda: build(self._recipe.model), self.device)
        self.last_layer = self._flat.last_layer(self._rehearsed.last)

    def train(self, model: Model, clients: Index, plan: Plan) -> Trained:
        """Local training of each client from this model. An exception in it is that client's failure alone."""
        m = clients.size
        self._check(plan, m)
        self.know(model)
        learned = Learned(self._torch, self._flat, model, m, self.device, self._sum_type)
        for row, k in enumerate(clients.tolist()):
            self._try_client(learned, k, row, m, plan)
        return self._collected(learned, model, clients, plan)

    def know(self, model: Model) -> None:
        """This model is being trained: calls without buffers use its own from now on."""
        if model.buffers.size:
            self._known = np.array(model.buffers, np.float32)

    def losses(self, model: Model, clients: Index, part: str, objective: Objective) -> LossStats:
        """Evaluate one model on each client's "train" or "validation" part, in eval mode."""
        self._write(model.params, model.buffers, model.counters)
        return self._evaluate(None, clients, part_of(self._data, part), objective)

    def losses_each(self, params: Real, clients: Index, part: str, buffers: Real | None = None) -> LossStats:
        """The plain loss of one model per client, (m, p), on the client's own data."""
        return self._evaluate(params, clients, part_of(self._data, part), CROSS_ENTROPY, buffers)

    def gradients(
        self, model: Model, clients: Index, *, last_layer: bool = False, objective: Objective | None = None
    ) -> Real:
        """Full-batch gradient of each client, in eval mode; zero for clients without samples."""
        self._write(model.params, model.buffers, model.counters)
        self._flat.module.eval()
        out = np.zeros((clients.size, self.n_params), np.float32)
        part = self._data.train
        for row, k in enumerate(clients.tolist()):
            owned = np.arange(part.start[k], part.start[k + 1])
            self._flat.module.zero_grad(set_to_none=True)
            for at in range(0, owned.size, CHUNK):
                x, y = self._batch(part, owned[at : at + CHUNK])
                each, _ = self._criterion.of(objective or CROSS_ENTROPY, self._forward(x), y, None)
                total = each.sum() if each.ndim else each * len(y)
                self._torch.autograd.backward(total / owned.size)
            if owned.size:
                out[row] = self._read_gradient()
        return out[:, self.last_layer] if last_layer else out

    def logits(self, params: Real, x: NDArray[Any], buffers: Real | None = None) -> Real:
        """Outputs of k models (k, p), with buffers (k, b) or (1, b) where the model has any: (k, n, classes)."""
        torch, flat = self._torch, self._flat
        flat.module.eval()
        out = []
        with torch.no_grad():
            for k, weights in enumerate(np.asarray(params, np.float32)):
                self._write(weights, None if buffers is None else buffers[min(k, len(buffers) - 1)])
                whole = self._resident.tensor(x)
                out.append(torch.cat([self._forward(whole[at : at + CHUNK]) for at in range(0, len(x), CHUNK)]))
        return cast("Real", torch.stack(out).cpu().numpy())

    def soft_gradient(
        self, params: Real, x: NDArray[np.float32], target: Real, buffers: Real | None = None
    ) -> tuple[float, Real]:
        """Mean cross-entropy against soft targets (n, classes), and its gradient (p,)."""
        torch, flat = self._torch, self._flat
        if self._recipe.loss is not None:
            raise TrainingError("soft targets", "the task has a loss of its own, without classes", "use cross-entropy")
        self._write(np.asarray(params, np.float32), buffers)
        flat.module.eval()
        flat.module.zero_grad(set_to_none=True)
        goal = torch.from_numpy(np.asarray(target, np.float32)).to(self.device)
        given = torch.from_numpy(np.ascontiguousarray(x)).to(self.device)
        log_p = torch.log_softmax(self._forward(given), dim=-1)
        loss = -(goal * log_p).sum() / len(x)
        loss.backward()
        return float(loss.detach()), self._read_gradient()

    def close(self) -> None:
        """Nothing to give back."""

    def _write(self, params: Any, buffers: Any = None, counters: Any = None) -> None:
        """Set the module's state; without buffers, to those of the model last trained and never to what a call left."""
        given = buffers is not None and len(buffers)
        self._flat.write(params, buffers if given else self._known, counters)

    def _check(self, plan: Plan, m: int) -> None:
        check_plan(plan, m, self.n_params)
        if self._recipe.loss is not None:
            plain = plan.objective == CROSS_ENTROPY
            check(plain, "an objective on class logits", "the task has a loss of its own", "use another method or loss")

    def _optimiser(self, plan: Plan, lr: float, **options: Any) -> Any:
        """A fresh optimiser of the module's parameters; `options` go to torch."""
        params, optim = self._flat.params, self._torch.optim
        if self._recipe.optimiser is not None:
            return self._recipe.optimiser(params, lr)
        if plan.optimiser == "adam":
            decay = plan.weight_decay
            return optim.Adam(params, lr=lr, betas=(BETA1, BETA2), eps=EPS, weight_decay=decay, **options)
        return optim.SGD(params, lr=lr, momentum=plan.momentum, weight_decay=plan.weight_decay, **options)

    def _batch(self, part: Part, at: Index) -> tuple[Tensor, Tensor]:
        x = self._resident.rows(self._data.x, part.index[at])
        if self._data.target is None:
            return x, self._resident.rows(part.label, at)
        return x, self._resident.rows(self._data.target, part.index[at])

    def _forward(self, x: Tensor) -> Tensor:
        if len(x) == 1 and not (self._flat.module.training or self._rehearsed.answers_one):
            return self._forward(x.repeat(2, *(1,) * (x.ndim - 1)))[:1]  # twice, it has the same statistics as once
        if self.precision == "float32":
            return cast("Tensor", self._flat.module(x))
        with autocast(self.device, self.precision):
            out = self._flat.module(x)
        return cast("Tensor", out.float())

    def _read_gradient(self) -> NDArray[np.float32]:
        parts = [p.grad if p.grad is not None else self._torch.zeros_like(p) for p in self._flat.params]
        return flat_array(parts, np.float32)

    def _augmented(self, x: Tensor, plan: Plan, client: int, epoch: int, at: int) -> Tensor:
        """The inputs of the batch that starts at this position, changed by a function of (seed, round, client, ...)."""
        if self._recipe.augmentation is None:
            return x
        return cast("Tensor", self._recipe.augmentation(x, batch_generator(plan, client, epoch, at)))

    def _starts(self, n: int, batch: int) -> range:
        """Where the batches of an epoch begin; a last one of one sample is left out if the module cannot take it."""
        single = n > batch and n % batch == 1 and not self._rehearsed.trains_one
        return range(0, n - single, batch)

    def _train_client(self, learned: Learned, client: int, row: int, m: int, plan: Plan) -> int:
        """Train one client; the module then holds its weights. How many steps it took."""
        from fedcohort.engines.torch_layers import begin_masks

        torch, flat, part, sums = self._torch, self._flat, self._data.train, learned.sums[row]
        self._write(learned.start, learned.buffers, learned.counters)
        owned = np.arange(part.start[client], part.start[client + 1])
        frozen = self._predictions(part, owned) if plan.objective.pseudo else None
        weight = sample_weight(plan, client, owned.size)
        given = None if weight is None else torch.from_numpy(weight).to(self.device)
        optimiser = self._optimiser(plan, float(plan.lr_of(m)[row]))
        extra = _Extra(torch, flat, plan, row, self.device)
        flat.module.train()
        key, steps = client_key(plan, client), 0
        begin_masks(flat.module, key)
        with seeded(self.device, key >> 1):
            for epoch in range(int(plan.epochs_of(m)[row]) if owned.size else 0):
                order = batch_order(owned.size, plan, client, epoch)
                for at in self._starts(owned.size, plan.batch_size):
                    pos = order[at : at + plan.batch_size]
                    x, y = self._batch(part, owned[pos])
                    x = self._augmented(x, plan, client, epoch, at)
                    optimiser.zero_grad(set_to_none=True)
                    q = None if frozen is None else frozen[pos]
                    each, plain = self._criterion.of(plan.objective, self._forward(x), y, q)
                    each = each if given is None else each * given[pos]
                    each.mean().backward()
                    extra.add()
                    optimiser.step()
                    steps += 1
                    sums.add(plain, len(y), self._sum_type, epoch == 0)
        return steps

    def _try_client(self, learned: Learned, client: int, row: int, m: int, plan: Plan) -> None:
        """Train one client and keep what it learned, or the reason why it could not."""
        try:
            learned.steps[row] = self._train_client(learned, client, row, m, plan)
            learned.keep(row)
        except FedcohortError:
            raise
        except Exception as error:
            if out_of_memory(error):
                raise too_large(f"client {client} with batches of {plan.batch_size}", self.device) from None
            learned.lost[row] = f"{type(error).__name__}: {error}".replace("\n", " ")[:SAID]

    def _collected(self, learned: Learned, model: Model, clients: Index, plan: Plan) -> Trained:
        """What everybody learned, on the host, with the signals of the plan."""
        weight = self._data.train.sizes[clients].astype(np.float64)
        why = {int(clients[row]): reason for row, reason in learned.lost.items()}
        return collect(self, self._data, model, plan, *learned.host(clients, weight), why)

    def _predictions(self, part: Part, owned: Index) -> Tensor:
        """Probabilities of the module as it is now on these samples, in eval mode."""
        self._flat.module.eval()
        with self._torch.no_grad():
            chunks = [
                self._torch.softmax(self._forward(self._batch(part, owned[at : at + CHUNK])[0]), dim=-1)
                for at in range(0, owned.size, CHUNK)
            ]
        return cast("Tensor", self._torch.cat(chunks) if chunks else self._torch.empty(0))

    def _evaluate(
        self, params: Real | None, clients: Index, part: Part, objective: Objective, buffers: Real | None = None
    ) -> LossStats:
        torch = self._torch
        sums = torch.zeros((clients.size, 3), dtype=self._sum_type, device=self.device)
        self._flat.module.eval()
        with torch.no_grad():
            for row, k in enumerate(clients.tolist()):
                if params is not None:
                    self._write(params[row], None if buffers is None else buffers[row])
                owned = np.arange(part.start[k], part.start[k + 1])
                for at in range(0, owned.size, CHUNK):
                    x, y = self._batch(part, owned[at : at + CHUNK])
                    output = self._forward(x)
                    each = self._criterion.of(objective, output, y, None)[0].to(self._sum_type)
                    total, square = (each.sum(), (each * each).sum()) if each.ndim else (each * len(y), each * np.nan)
                    sums[row] += torch.stack([total, square, self._criterion.right(output, y).to(total)])
        count = part.sizes[clients]
        found = sums.cpu().numpy().astype(np.float64).T / np.where(count > 0, count, np.nan)
        return LossStats(found[0], found[1], found[2], count)


class _Extra:
    """What the plan adds to every gradient: mu (w - w_broadcast) and the correction."""

    def __init__(self, torch: Any, flat: Flat, plan: Plan, row: int, device: str) -> None:
        self._flat, self._mu = flat, plan.prox
        self._start = [p.detach().clone() for p in flat.params] if plan.prox else []
        self._correction: Tensor | None = None
        if plan.correction is not None:
            given = np.asarray(plan.correction, np.float32)
            self._correction = torch.from_numpy(np.array(given if given.ndim == 1 else given[row])).to(device)

    def add(self) -> None:
        """Add both to the gradients as they are now."""
        for p, w in zip(self._flat.params, self._start, strict=False):
            if p.grad is not None:
                p.grad.add_(p.detach() - w, alpha=self._mu)
        if self._correction is not None:
            for p, c in self._flat.split(self._correction):
                if p.grad is not None:
                    p.grad.add_(c)


def _restored(rows: Tensor | None, gone: NDArray[np.bool_], broadcast: NDArray[Any]) -> NDArray[Any] | None:
    """Buffers on the host; those of clients that are gone are the broadcast model's."""
    if rows is None:
        return None
    out: NDArray[Any] = rows.cpu().numpy()
    out[gone] = broadcast
    return out
