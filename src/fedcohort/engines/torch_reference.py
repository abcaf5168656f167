"""The reference engine: plain PyTorch, one client after the other, any `nn.Module`. The semantics of all engines.

A model is a `Network` (built as `nn.Sequential`) or a factory of modules. Trainable parameters are one flat vector in
the order of `parameters()`; floating buffers (batch-norm statistics) and integer ones (counters) are kept apart.
Training runs in train mode. Everything that only evaluates (losses, gradients, frozen predictions, logits) runs in eval
mode, so that evaluation changes no statistics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from fedcohort.core.rng import bits_at
from fedcohort.engines.client_signals import collect, part_of
from fedcohort.engines.interface import ClientData, LossStats, batch_order
from fedcohort.engines.losses import CROSS_ENTROPY
from fedcohort.engines.networks import Conv, Flatten, Linear, MaxPool, Network, ReLU
from fedcohort.engines.steps import BETA1, BETA2, EPS, check_plan, sample_weight
from fedcohort.errors import MissingExtra, TrainingError
from fedcohort.protocols import Trained
from fedcohort.types import Index, Model, Objective, Part, Plan, Real, Updates

if TYPE_CHECKING:
    from torch import Tensor, nn

CHUNK = 512  # samples that are evaluated together

Factory = Callable[[], Any]


def torch_module() -> Any:
    """The torch package, or the error that says how to get it."""
    try:
        import torch
    except ImportError:
        raise MissingExtra.of("the torch_reference engine", "torch") from None
    return torch


def sequential(network: Network) -> nn.Module:
    """The network as an `nn.Sequential` with the same flat parameter order."""
    kinds = torch_module().nn
    layers: list[Any] = []
    for layer, shape in zip(network.layers, network.shapes, strict=False):
        if isinstance(layer, Conv):
            layers.append(kinds.Conv2d(shape[0], layer.out, layer.kernel, padding=layer.padding))
        elif isinstance(layer, Linear):
            layers.append(kinds.Linear(shape[0], layer.out))
        elif isinstance(layer, ReLU):
            layers.append(kinds.ReLU())
        elif isinstance(layer, MaxPool):
            layers.append(kinds.MaxPool2d(layer.size))
        elif isinstance(layer, Flatten):
            layers.append(kinds.Flatten())
    return cast("nn.Module", kinds.Sequential(*layers))


def build(model: Network | Factory) -> nn.Module:
    """A module from a network or a factory."""
    if isinstance(model, Network):
        return sequential(model)
    made = model()
    if not isinstance(made, torch_module().nn.Module):
        raise TrainingError(f"a {type(made).__name__}", "a factory must make a torch.nn.Module", "return one")
    return cast("nn.Module", made)


def initial(model: Network | Factory, rng: np.random.Generator) -> Model:
    """A fresh model drawn from this generator alone; torch's own generator is left as it was."""
    if isinstance(model, Network):
        return Model(model.initial(rng))
    torch = torch_module()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(rng.integers(1 << 62)))
        return Flat(build(model)).read()


class Flat:
    """A module seen as flat arrays."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.params: list[Tensor] = [p for p in module.parameters() if p.requires_grad]
        self.floats: list[Tensor] = [b for b in module.buffers() if b.is_floating_point()]
        self.counters: list[Tensor] = [b for b in module.buffers() if not b.is_floating_point()]
        self.size = sum(p.numel() for p in self.params)

    def read(self) -> Model:
        """The module's present state."""
        return Model(_flat(self.params, np.float32), _flat(self.floats, np.float32), _flat(self.counters, np.int64))

    def write(self, params: Real, buffers: Real | None = None, counters: NDArray[np.int64] | None = None) -> None:
        """Set the module's state; empty or missing buffers stay as they are."""
        _fill(self.params, params)
        if buffers is not None and buffers.size:
            _fill(self.floats, buffers)
        if counters is not None and counters.size:
            _fill(self.counters, counters)

    def last_layer(self) -> slice:
        """Weight and bias of the last module that has parameters of its own."""
        owners = [m for m in self.module.modules() if any(p.requires_grad for p in m.parameters(recurse=False))]
        width = sum(p.numel() for p in owners[-1].parameters(recurse=False) if p.requires_grad) if owners else 0
        return slice(self.size - width, self.size)

    def split(self, flat: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Each parameter with its part of a flat tensor."""
        start = 0
        for p in self.params:
            yield p, flat[start : start + p.numel()].view_as(p)
            start += p.numel()


def _flat(tensors: list[Tensor], dtype: Any) -> NDArray[Any]:
    if not tensors:
        return np.empty(0, dtype)
    return np.concatenate([t.detach().cpu().numpy().reshape(-1) for t in tensors]).astype(dtype)


def _fill(tensors: list[Tensor], values: NDArray[Any]) -> None:
    torch = torch_module()
    need = sum(t.numel() for t in tensors)
    if values.size != need:
        raise TrainingError(f"{values.size} values", f"the model has {need}", "use a model of this task")
    start = 0
    with torch.no_grad():
        for t in tensors:
            part = np.ascontiguousarray(values[start : start + t.numel()])
            t.copy_(torch.from_numpy(part.copy()).view(t.shape))
            start += t.numel()


@dataclass(slots=True)
class _Epoch:
    """Sums over the first local epoch."""

    loss: float = 0.0
    square: float = 0.0
    count: int = 0


class ReferenceEngine:
    """Trains any module, client by client, in plain PyTorch: what the other engines must agree with."""

    name = "torch_reference"

    def __init__(self, model: Network | Factory, data: ClientData) -> None:
        self._torch = torch_module()
        self._flat = Flat(build(model))
        self._data = data
        self.n_params = self._flat.size
        self.last_layer = self._flat.last_layer()

    def train(self, model: Model, clients: Index, plan: Plan) -> Trained:
        """Local training of each client from this model."""
        m = clients.size
        check_plan(plan, m, self.n_params)
        delta = np.zeros((m, self.n_params), np.float32)
        steps, broken = np.zeros(m, np.int64), np.zeros(m, np.bool_)
        buffers = np.repeat(model.buffers[None], m, axis=0) if model.buffers.size else None
        counters = np.repeat(model.counters[None], m, axis=0) if model.counters.size else None
        first = [_Epoch() for _ in range(m)]
        for row, k in enumerate(clients.tolist()):
            steps[row], fine = self._train_client(model, k, row, m, plan, first[row])
            after = self._flat.read()
            broken[row] = not (fine and np.isfinite(after.params).all() and np.isfinite(after.buffers).all())
            if broken[row]:
                continue
            delta[row] = after.params - model.params
            if buffers is not None:
                buffers[row] = after.buffers
            if counters is not None:
                counters[row] = after.counters
        updates = Updates(clients, delta, self._data.train.sizes[clients].astype(np.float64), steps, buffers, counters)
        return collect(self, self._data, model, plan, updates, _epoch_stats(first), broken)

    def losses(self, model: Model, clients: Index, part: str, objective: Objective) -> LossStats:
        """Evaluate one model on each client's "train" or "validation" part, in eval mode."""
        self._flat.write(model.params, model.buffers, model.counters)
        return self._evaluate(None, clients, part_of(self._data, part), objective)

    def losses_each(self, params: Real, clients: Index, part: str, buffers: Real | None = None) -> LossStats:
        """Cross-entropy of one model per client, (m, p), on the client's own data."""
        return self._evaluate(params, clients, part_of(self._data, part), CROSS_ENTROPY, buffers)

    def gradients(
        self, model: Model, clients: Index, *, last_layer: bool = False, objective: Objective | None = None
    ) -> Real:
        """Full-batch gradient of each client, in eval mode; zero for clients without samples."""
        self._flat.write(model.params, model.buffers, model.counters)
        self._flat.module.eval()
        out = np.zeros((clients.size, self.n_params), np.float32)
        part = self._data.train
        for row, k in enumerate(clients.tolist()):
            owned = np.arange(part.start[k], part.start[k + 1])
            self._flat.module.zero_grad(set_to_none=True)
            for at in range(0, owned.size, CHUNK):
                x, y = self._batch(part, owned[at : at + CHUNK])
                log_p = self._torch.log_softmax(self._flat.module(x), dim=-1)
                each = _losses(objective or CROSS_ENTROPY, log_p, y, log_p.detach().exp())
                self._torch.autograd.backward(each.sum() / owned.size)
            if owned.size:
                out[row] = self._read_gradient()
        return out[:, self.last_layer] if last_layer else out

    def logits(self, params: Real, x: NDArray[np.float32], buffers: Real | None = None) -> Real:
        """Logits of k models (k, p), with buffers (k, b) or (1, b) where the model has any: (k, n, classes)."""
        torch, flat = self._torch, self._flat
        flat.module.eval()
        out = np.empty((len(params), len(x), self._data.classes), np.float32)
        with torch.no_grad():
            for k, weights in enumerate(np.asarray(params, np.float32)):
                flat.write(weights, None if buffers is None else buffers[min(k, len(buffers) - 1)])
                for at in range(0, len(x), CHUNK):
                    out[k, at : at + CHUNK] = flat.module(torch.from_numpy(x[at : at + CHUNK])).numpy()
        return out

    def soft_gradient(self, params: Real, x: NDArray[np.float32], target: Real) -> tuple[float, Real]:
        """Mean cross-entropy against soft targets (n, classes), and its gradient (p,)."""
        torch, flat = self._torch, self._flat
        flat.write(np.asarray(params, np.float32))
        flat.module.eval()
        flat.module.zero_grad(set_to_none=True)
        goal = torch.from_numpy(np.asarray(target, np.float32))
        log_p = torch.log_softmax(flat.module(torch.from_numpy(np.ascontiguousarray(x))), dim=-1)
        loss = -(goal * log_p).sum() / len(x)
        loss.backward()
        return float(loss.detach()), self._read_gradient()

    def close(self) -> None:
        """Nothing to give back."""

    def _optimiser(self, plan: Plan, lr: float, **options: Any) -> Any:
        """A fresh optimiser of the module's parameters; `options` go to torch."""
        params, optim = self._flat.params, self._torch.optim
        if plan.optimiser == "adam":
            decay = plan.weight_decay
            return optim.Adam(params, lr=lr, betas=(BETA1, BETA2), eps=EPS, weight_decay=decay, **options)
        return optim.SGD(params, lr=lr, momentum=plan.momentum, weight_decay=plan.weight_decay, **options)

    def _batch(self, part: Part, at: Index) -> tuple[Tensor, Tensor]:
        x = self._torch.from_numpy(self._data.x[part.index[at]])
        return x, self._torch.from_numpy(part.label[at])

    def _read_gradient(self) -> NDArray[np.float32]:
        parts = [p.grad if p.grad is not None else self._torch.zeros_like(p) for p in self._flat.params]
        return _flat(parts, np.float32)

    def _train_client(self, model: Model, client: int, row: int, m: int, plan: Plan, first: _Epoch) -> tuple[int, bool]:
        """Train one client; the module then holds its weights. Steps taken, and whether all losses were finite."""
        torch, flat, part = self._torch, self._flat, self._data.train
        flat.write(model.params, model.buffers, model.counters)
        owned = np.arange(part.start[client], part.start[client + 1])
        frozen = self._predictions(part, owned) if plan.objective.pseudo else None
        weight = sample_weight(plan, client, owned.size)
        optimiser = self._optimiser(plan, float(plan.lr_of(m)[row]))
        extra = _Extra(torch, flat, plan, row)
        flat.module.train()
        steps, fine = 0, True
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(bits_at(plan.seed, "dropout", plan.round, np.array([client]))[0] >> 1))
            for epoch in range(int(plan.epochs_of(m)[row]) if owned.size else 0):
                order = batch_order(owned.size, plan, client, epoch)
                for at in range(0, owned.size, plan.batch_size):
                    pos = order[at : at + plan.batch_size]
                    x, y = self._batch(part, owned[pos])
                    optimiser.zero_grad(set_to_none=True)
                    log_p = torch.log_softmax(flat.module(x), dim=-1)
                    each = _losses(plan.objective, log_p, y, None if frozen is None else frozen[pos])
                    each = each if weight is None else each * torch.from_numpy(weight[pos])
                    each.mean().backward()
                    extra.add()
                    optimiser.step()
                    steps += 1
                    fine = _note(torch, log_p, y, first if epoch == 0 else None) and fine
        return steps, fine

    def _predictions(self, part: Part, owned: Index) -> Tensor:
        """Probabilities of the module as it is now on these samples, in eval mode."""
        self._flat.module.eval()
        with self._torch.no_grad():
            chunks = [
                self._torch.softmax(self._flat.module(self._batch(part, owned[at : at + CHUNK])[0]), dim=-1)
                for at in range(0, owned.size, CHUNK)
            ]
        return cast("Tensor", self._torch.cat(chunks) if chunks else self._torch.empty(0))

    def _evaluate(
        self, params: Real | None, clients: Index, part: Part, objective: Objective, buffers: Real | None = None
    ) -> LossStats:
        torch = self._torch
        sums = np.zeros((3, clients.size))
        self._flat.module.eval()
        with torch.no_grad():
            for row, k in enumerate(clients.tolist()):
                if params is not None:
                    self._flat.write(params[row], None if buffers is None else buffers[row])
                owned = np.arange(part.start[k], part.start[k + 1])
                for at in range(0, owned.size, CHUNK):
                    x, y = self._batch(part, owned[at : at + CHUNK])
                    log_p = torch.log_softmax(self._flat.module(x), dim=-1)
                    each = _losses(objective, log_p, y, log_p.exp()).double()
                    right = (log_p.argmax(dim=-1) == y).sum()
                    sums[:, row] += (float(each.sum()), float((each * each).sum()), float(right))
        count = part.sizes[clients]
        loss, square, right = sums / np.where(count > 0, count, np.nan)
        return LossStats(loss, square, right, count)


class _Extra:
    """What the plan adds to every gradient: mu (w - w_broadcast) and the correction."""

    def __init__(self, torch: Any, flat: Flat, plan: Plan, row: int) -> None:
        self._flat, self._mu = flat, plan.prox
        self._start = [p.detach().clone() for p in flat.params] if plan.prox else []
        self._correction: Tensor | None = None
        if plan.correction is not None:
            given = np.asarray(plan.correction, np.float32)
            self._correction = torch.from_numpy(np.array(given if given.ndim == 1 else given[row]))

    def add(self) -> None:
        """Add both to the gradients as they are now."""
        for p, w in zip(self._flat.params, self._start, strict=False):
            if p.grad is not None:
                p.grad.add_(p.detach() - w, alpha=self._mu)
        if self._correction is not None:
            for p, c in self._flat.split(self._correction):
                if p.grad is not None:
                    p.grad.add_(c)


def _losses(o: Objective, log_p: Tensor, y: Tensor, frozen: Tensor | None) -> Tensor:
    """Loss of every sample, in the terms of :mod:`fedcohort.engines.losses`."""
    hard = -log_p.gather(-1, y[..., None])[..., 0]
    total = o.ce * ((1.0 - o.smoothing) * hard - o.smoothing * log_p.mean(dim=-1))
    if o.pseudo and frozen is not None:
        total = total - o.pseudo * (frozen * log_p).sum(dim=-1)
    if o.rce:
        total = total - o.rce * o.floor * (1.0 - (-hard).exp())
    return total


def _note(torch: Any, log_p: Tensor, y: Tensor, first: _Epoch | None) -> bool:
    """Add this batch's plain cross-entropy to the first epoch's sums; whether it was finite."""
    hard = -log_p.detach().gather(-1, y[..., None]).double()
    total = float(hard.sum())
    if first is not None:
        first.loss += total
        first.square += float((hard * hard).sum())
        first.count += len(y)
    return bool(np.isfinite(total))


def _epoch_stats(first: list[_Epoch]) -> LossStats:
    count = np.array([e.count for e in first], np.int64)
    n = np.where(count > 0, count, np.nan)
    loss, square = np.array([e.loss for e in first]) / n, np.array([e.square for e in first]) / n
    return LossStats(loss, square, np.full(len(first), np.nan), count)
