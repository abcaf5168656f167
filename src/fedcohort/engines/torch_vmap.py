"""The torch_vmap engine: many clients in one step, by `torch.func` (functional_call, grad, vmap); for GPUs.

Clients are stacked as in the numpy engine: parameters are (clients, p), short batches are padded and masked. As many
clients as fit the memory step together; when the device says that it is out of memory, half as many. A module that
vmap cannot take, or that would not give the numbers of torch_reference, is trained as torch_reference does, and the log
says why. Numbers agree with torch_reference within rounding.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from fedcohort.engines.batch_stacks import Stack, stacks
from fedcohort.engines.interface import ClientData, batch_order
from fedcohort.engines.losses import CROSS_ENTROPY
from fedcohort.engines.recipe import Modeled
from fedcohort.engines.steps import BETA1, BETA2, EPS, sample_weight
from fedcohort.engines.torch_device import autocast, out_of_memory, too_large
from fedcohort.engines.torch_reference import Learned, ReferenceEngine
from fedcohort.errors import FedcohortError
from fedcohort.protocols import Trained
from fedcohort.types import Index, Model, Plan

if TYPE_CHECKING:
    from torch import Tensor

MEMORY = 0.25  # the share of the free memory that the clients of a chunk may take, by a rough estimate
COPIES = 8  # of its parameters that a client needs: weights, gradients, optimiser, temporaries
GIB = 1 << 30

_log = logging.getLogger("fedcohort.engine")


class VmapEngine(ReferenceEngine):
    """Trains the clients of a cohort together on one device."""

    name = "torch_vmap"

    def __init__(self, model: Modeled, data: ClientData, device: str = "auto", precision: str = "float32") -> None:
        """`device` and `precision` as for :class:`~fedcohort.engines.ReferenceEngine`."""
        super().__init__(model, data, device, precision)
        module = self._flat.module
        named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        self._names, self._shapes = [name for name, _ in named], [tuple(p.shape) for _, p in named]
        self._sizes = [p.numel() for _, p in named]
        self._activations = 0  # floats of a sample that a forward pass makes, found by `_obstacle`
        self.at_once = 0  # clients that step together; 0: not yet estimated
        self.obstacle = self._obstacle()
        if self.obstacle:
            _log.info("engine: torch_vmap trains client by client, as torch_reference (%s)", self.obstacle)

    def train(self, model: Model, clients: Index, plan: Plan) -> Trained:
        """Local training of each client from this model."""
        if self.obstacle:
            return super().train(model, clients, plan)
        m = clients.size
        self._check(plan, m)
        self.know(model)
        learned = Learned(self._torch, self._flat, model, m, self.device, self._sum_type)
        work = plan.epochs_of(m) * -(-self._data.train.sizes[clients] // plan.batch_size)
        order, done = np.argsort(-work, kind="stable"), 0
        self.at_once = self.at_once or self._estimate(plan.batch_size)
        while done < m:
            rows = order[done : done + self.at_once]
            if self._try_together(learned, clients, rows, plan):
                done += rows.size
        return self._collected(learned, model, clients, plan)

    # -- what vmap can take --------------------------------------------------------------------------------------

    def _obstacle(self) -> str:
        """Why these clients cannot be trained together with the numbers of torch_reference; empty if they can."""
        from fedcohort.engines.torch_layers import SeededDropout

        torch, module = self._torch, self._flat.module
        if self._recipe.optimiser is not None:
            return "an optimiser of your own steps one module at a time"
        if any(p.dtype != torch.float32 for p in module.parameters()):
            return "its parameters are not all float32"
        if any(isinstance(m, SeededDropout) for m in module.modules()):
            return "dropout is drawn for every client on its own"
        part = self._data.train
        two = np.arange(min(2, part.index.size))
        if not two.size:
            return ""
        try:
            found = self._rehearsal(*self._batch(part, two))
        except Exception as error:
            return f"{type(error).__name__}: {error}".split("\n")[0][:160]
        return found or ("" if self._rehearsed.trains_one else "it cannot be trained on one sample")

    def _rehearsal(self, x: Tensor, y: Tensor) -> str:
        """Two clients with padded batches, once: what does not go, or what would go wrong."""
        torch, module = self._torch, self._flat.module
        module.train()
        before = [b.clone() for b in module.buffers()]
        whole = torch.cat([t.detach().reshape(-1) for t in self._flat.params])
        values, seen = self._values(whole.repeat(2, 1)), [0]
        hooks = [m.register_forward_hook(lambda _m, _i, out: seen.append(_numel(out))) for m in module.modules()]
        try:
            alone = self._forward(x)
            self._activations = sum(seen) // len(x)
            padded = self._forward(torch.cat([x, x[:1], x[:1]]))[: len(x)]
        finally:
            for hook in hooks:
                hook.remove()
        if not torch.allclose(alone, padded, rtol=1e-4, atol=1e-5, equal_nan=True):
            return "an output depends on the other samples of its batch, and short batches are padded"
        if any(not torch.equal(a, b) for a, b in zip(before, module.buffers(), strict=True)):
            return "training changes its buffers"
        each, _ = self._criterion.of(CROSS_ENTROPY, alone, y, None)
        if not each.ndim:
            return "its loss is one number for a whole batch"
        torch.autograd.backward(each.mean())
        if any(p.grad is None for p in self._flat.params):
            return "some of its parameters have no gradient"
        module.zero_grad(set_to_none=True)
        share = torch.full((2, len(x)), 1.0 / len(x), device=self.device)
        self._gradient(Plan())(values, torch.stack([x, x]), torch.stack([y, y]), share, None)
        return ""

    def _estimate(self, batch: int) -> int:
        """Clients whose parameters and activations fit a share of the memory that is free."""
        torch, kind = self._torch, self.device.partition(":")[0]
        if kind == "cuda":
            free = torch.cuda.mem_get_info(self.device)[0]
        elif kind == "mps":
            free = torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory()
        else:
            free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else GIB
        each = 4 * (COPIES * self.n_params + 3 * batch * (self._activations + int(np.prod(self._data.x.shape[1:]))))
        return max(1, int(MEMORY * free / each))

    # -- training ------------------------------------------------------------------------------------------------

    def _try_together(self, learned: Learned, clients: Index, rows: Index, plan: Plan) -> bool:
        """Train these rows; False where the device had no room for so many, and fewer are to be tried."""
        m = clients.size
        try:
            self._train_rows(learned, clients, rows, plan)
        except FedcohortError:
            raise
        except Exception as error:
            if not out_of_memory(error):  # one of them: train each alone, and whose exception it is will show
                for row in rows.tolist():
                    self._try_client(learned, int(clients[row]), row, m, plan)
                return True
            if rows.size == 1:
                raise too_large(f"one client with batches of {plan.batch_size}", self.device) from None
            self.at_once = -(-int(rows.size) // 2)
            _log.info("engine: torch_vmap, out of memory on %s: now %d clients at once", self.device, self.at_once)
            if self.device.startswith("cuda"):
                self._torch.cuda.empty_cache()
            return False
        return True

    def _train_rows(self, learned: Learned, clients: Index, rows: Index, plan: Plan) -> None:
        def shuffled(n: int, client: int, epoch: int) -> Index:
            return batch_order(n, plan, client, epoch)

        who, epochs = clients[rows], plan.epochs_of(clients.size)[rows]
        for stack in stacks(self._data.train, who, plan.batch_size, epochs, shuffled, room=1 << 62):
            self._train_stack(learned, who[stack.rows], rows[stack.rows], clients.size, stack, plan)

    def _train_stack(self, learned: Learned, who: Index, rows: Index, m: int, stack: Stack, plan: Plan) -> None:
        """All steps of clients with batches of one width; `rows` are their places among m clients."""
        torch, part, device = self._torch, self._data.train, self.device
        self._flat.write(learned.start, learned.buffers, learned.counters)
        frozen = self._predictions(part, stack.sample) if plan.objective.pseudo else None
        self._flat.module.train()
        x, y = self._batch(part, stack.sample)
        weight = _weights(torch, who, stack, plan, device)
        at, count = torch.from_numpy(stack.at).to(device), torch.from_numpy(stack.count).to(device)
        place = torch.arange(stack.at.shape[2], device=device)
        gradient = self._gradient(plan)
        stepper = _Stepper(torch, learned.start, plan, rows, m, device)
        total, loss, square = (torch.zeros(who.size, dtype=self._sum_type, device=device) for _ in range(3))
        for step in range(int(stack.steps[0])):
            n = stack.active(step)
            batch, many = at[:n, step], count[:n, step, None]
            valid = place < many
            share = valid.to(torch.float32) / many
            share = share if weight is None else share * weight[batch]
            inputs = self._inputs(x[batch], who, stack, step, plan)
            found, plain = gradient(
                self._values(stepper.weights[:n]), inputs, y[batch], share, None if frozen is None else frozen[batch]
            )
            stepper.step(torch.cat([found[name].reshape(n, -1) for name in self._names], dim=1), n)
            hard = torch.where(valid, plain, torch.zeros_like(plain)).to(self._sum_type)
            total[:n] += hard.sum(dim=1)
            early = torch.from_numpy(step < stack.first[:n]).to(device)
            loss[:n] += torch.where(early, hard.sum(dim=1), 0.0)
            square[:n] += torch.where(early, (hard * hard).sum(dim=1), 0.0)
        self._keep(learned, rows, stack, stepper.weights, (total, loss, square))

    def _keep(self, learned: Learned, rows: Index, stack: Stack, weights: Tensor, sums: tuple[Tensor, ...]) -> None:
        total, loss, square = sums
        at = self._torch.from_numpy(rows).to(self.device)
        learned.delta[at] = weights - learned.start
        learned.fine[at] = self._torch.isfinite(weights).all(dim=1) & self._torch.isfinite(total)
        learned.steps[rows] = stack.steps
        owned = np.diff(stack.offset)
        for i, row in enumerate(rows.tolist()):
            learned.sums[row].loss, learned.sums[row].square = loss[i], square[i]
            learned.sums[row].count = int(owned[i])

    def _inputs(self, x: Tensor, who: Index, stack: Stack, step: int, plan: Plan) -> Tensor:
        """Inputs of one step, (clients, batch, ...), each client's own samples augmented by its own draws."""
        if self._recipe.augmentation is None:
            return x
        for i in range(len(x)):
            real, epoch = int(stack.count[i, step]), step // int(stack.first[i])
            at = (step % int(stack.first[i])) * plan.batch_size
            x[i, :real] = self._augmented(x[i, :real], plan, int(who[i]), epoch, at)
        return x

    def _gradient(self, plan: Plan) -> Any:
        """(parameters, x, y, share, frozen) of many clients -> gradients and plain losses."""
        func, module = self._torch.func, self._flat.module

        def loss(values: dict[str, Tensor], x: Tensor, y: Tensor, share: Tensor, q: Tensor | None) -> tuple[Any, Any]:
            with autocast(self.device, self.precision):
                output = func.functional_call(module, values, (x,))
            each, plain = self._criterion.of(plan.objective, output.float(), y, q)
            return (each * share).sum(), plain

        one = func.grad(loss, has_aux=True)
        return lambda values, x, y, share, q: self._torch.vmap(
            one, in_dims=(0, 0, 0, 0, None if q is None else 0), randomness="error"
        )(values, x, y, share, q)

    def _values(self, weights: Tensor) -> dict[str, Tensor]:
        """Views of (clients, p) by the names of the module's parameters."""
        parts = self._torch.split(weights, self._sizes, dim=1)
        return {n: v.reshape(len(weights), *s) for n, v, s in zip(self._names, parts, self._shapes, strict=True)}


class _Stepper:
    """Local optimisers of many clients on the device; the arithmetic of :mod:`fedcohort.engines.steps`."""

    def __init__(self, torch: Any, start: Tensor, plan: Plan, rows: Index, m: int, device: str) -> None:
        self._torch, self._plan, self._start, self._taken = torch, plan, start, 0
        self.weights = start.repeat(rows.size, 1)
        self._lr = torch.from_numpy(plan.lr_of(m)[rows].astype(np.float32))[:, None].to(device)
        self._first = torch.zeros_like(self.weights) if plan.momentum or plan.optimiser == "adam" else None
        self._second = torch.zeros_like(self.weights) if plan.optimiser == "adam" else None
        self._correction: Tensor | None = None
        if plan.correction is not None:
            given = np.asarray(plan.correction, np.float32)
            self._correction = torch.from_numpy(np.array(given[None] if given.ndim == 1 else given[rows])).to(device)

    def step(self, g: Tensor, active: int) -> None:
        """Move the first `active` rows along their gradients."""
        self._taken += 1
        w, lr, plan = self.weights[:active], self._lr[:active], self._plan
        if plan.prox:
            g = g + plan.prox * (w - self._start)
        if self._correction is not None:
            g = g + self._correction[:active]
        if plan.weight_decay:
            g = g + plan.weight_decay * w
        if self._second is not None and self._first is not None:
            first, second = self._first[:active], self._second[:active]
            first.mul_(BETA1).add_(g, alpha=1.0 - BETA1)
            second.mul_(BETA2).addcmul_(g, g, value=1.0 - BETA2)
            root = second.sqrt() / (1.0 - BETA2**self._taken) ** 0.5 + EPS
            w.sub_(lr / (1.0 - BETA1**self._taken) * first / root)
            return
        if self._first is not None:
            g = self._first[:active].mul_(plan.momentum).add_(g)
        w.sub_(lr * g)


def _weights(torch: Any, who: Index, stack: Stack, plan: Plan, device: str) -> Tensor | None:
    """The plan's weight of every sample of the stack; None where it names none."""
    if not plan.sample_weight:
        return None
    sizes = np.diff(stack.offset).tolist()
    given = [sample_weight(plan, int(k), n) for k, n in zip(who, sizes, strict=True)]
    each = [np.ones(n, np.float32) if v is None else v for v, n in zip(given, sizes, strict=True)]
    found: Tensor = torch.from_numpy(np.concatenate(each)).to(device)
    return found


def _numel(out: Any) -> int:
    return out.numel() if hasattr(out, "numel") else sum(_numel(o) for o in out) if isinstance(out, tuple) else 0
