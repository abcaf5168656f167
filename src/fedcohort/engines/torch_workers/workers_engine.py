"""The torch_workers engine: any `nn.Module`, in the fastest way PyTorch has on this machine.

The semantics are those of torch_reference. Variants (channels-last, torch.compile) are timed once per machine, model
and batch size on a few real batches, and the fastest is remembered in a JSON file of the cache folder. Clients are
distributed over single-threaded processes once training has taken as long as it takes to start them. A variant or a
process that fails is not used; the log says so.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import platform
import time
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcohort.core.constraints import CountOrZero
from fedcohort.engines.cache import cache_folder
from fedcohort.engines.interface import ClientData, LossStats
from fedcohort.engines.recipe import Modeled
from fedcohort.engines.steps import check_plan
from fedcohort.engines.torch_workers.processes import Processes
from fedcohort.engines.torch_workers.variant import Variant, VariantEngine
from fedcohort.errors import checked
from fedcohort.protocols import Trained
from fedcohort.types import Index, Model, Objective, Part, Plan, Real

PROCESSES_PAY = 2.0  # processes are started once training has taken so many seconds in this one
COMPILE_PAYS = 20.0  # torch.compile is tried for rounds with at least so many
LAST = 0.95  # of the time of channels-last: what another layout must take to be preferred
TRIAL_BATCHES = 4

_log = logging.getLogger("fedcohort.engine")


class WorkersEngine:
    """Trains any module in single-threaded processes; how exactly is decided at the first training."""

    name = "torch_workers"

    @checked
    def __init__(self, model: Modeled, data: ClientData, workers: CountOrZero = 0) -> None:
        """`workers=0` means one process per processor; 1 trains in this process."""
        self._model, self._data = model, data
        self.workers = workers or os.cpu_count() or 1
        self._engine = VariantEngine(model, data, Variant())
        self.variant: Variant | None = None  # decided at the first training
        self._seconds = 0.0  # per sample and epoch
        self._spent = 0.0  # on training in this process
        self._processes: Processes | None = None
        self._processes_failed = self.workers == 1
        self.n_params = self._engine.n_params
        self.last_layer = self._engine.last_layer

    def train(self, model: Model, clients: Index, plan: Plan) -> Trained:
        """Local training of each client from this model."""
        check_plan(plan, clients.size, self.n_params)
        self.decided(model, clients, plan)
        self._engine.know(model)  # which trains elsewhere, perhaps
        work = self._data.train.sizes[clients] * plan.epochs_of(clients.size)
        self._spent += self._seconds * float(work.sum())
        pays = self._spent >= PROCESSES_PAY and np.count_nonzero(work) > 1
        if (pays or (self._processes and clients.size)) and not self._processes_failed:
            out = self._train_in_processes(model, clients, plan, work)
            if out is not None:
                return out
        return self._engine.train(model, clients, plan)

    def decided(self, model: Model, clients: Index, plan: Plan) -> Variant:
        """The variant, decided now if it was not yet and there is anything to try it on."""
        work = self._data.train.sizes[clients] * plan.epochs_of(clients.size)
        if self.variant is None and work.any():
            self._decide(model, clients, plan, work)
        return self.variant or Variant()

    def losses(self, model: Model, clients: Index, part: str, objective: Objective) -> LossStats:
        """Evaluate one model on each client's "train" or "validation" part."""
        return self._engine.losses(model, clients, part, objective)

    def gradients(
        self, model: Model, clients: Index, *, last_layer: bool = False, objective: Objective | None = None
    ) -> Real:
        """Full-batch gradient of each client."""
        return self._engine.gradients(model, clients, last_layer=last_layer, objective=objective)

    def logits(self, params: Real, x: NDArray[np.float32], buffers: Real | None = None) -> Real:
        """Logits of k models."""
        return self._engine.logits(params, x, buffers)

    def soft_gradient(
        self, params: Real, x: NDArray[np.float32], target: Real, buffers: Real | None = None
    ) -> tuple[float, Real]:
        """Mean cross-entropy against soft targets, and its gradient."""
        return self._engine.soft_gradient(params, x, target, buffers)

    def close(self) -> None:
        """End the processes."""
        if self._processes is not None:
            self._processes.close()
            self._processes = None

    def _train_in_processes(self, model: Model, clients: Index, plan: Plan, work: Index) -> Trained | None:
        try:
            if self._processes is None:
                self._processes = Processes(self._model, self._data, self.variant or Variant(), self.workers)
                _log.info("engine: torch_workers, %d single-threaded processes", self.workers)
            return self._processes.train(model, clients, plan, work)
        except (OSError, EOFError, ValueError) as error:
            _log.warning("engine: torch_workers continues in one process (%s: %s)", type(error).__name__, error)
            self._processes_failed = True
            self.close()
            return None

    def _decide(self, model: Model, clients: Index, plan: Plan, work: Index) -> None:
        """Take the remembered variant, or time the candidates on some batches of the largest client."""
        largest = int(clients[int(np.argmax(self._data.train.sizes[clients]))])
        trial = _trial(self._data, largest, plan.batch_size)
        key = _key(self._engine, plan.batch_size)
        self._seconds = self._time(Variant(), trial, model, plan)
        found = _remembered().get(key)
        best = Variant(**found["variant"]) if found else self._fastest(trial, model, plan, float(work.sum()), key)
        if best != Variant():
            try:
                self._engine = VariantEngine(self._model, self._data, best)
            except Exception as error:
                _log.info("engine: torch_workers, %s does not run here (%s)", best, type(error).__name__)
                best = Variant()
        self.variant = best
        _log.info("engine: torch_workers, %s (%s)", best, "remembered" if found else "measured")

    def _fastest(self, trial: ClientData, model: Model, plan: Plan, work: float, key: str) -> Variant:
        """The fastest candidate; remembered for the next time."""
        times = {Variant(): self._seconds}
        candidates = [Variant(channels_last=True)] if self._data.x.ndim == 4 and self._engine.may_turn else []
        candidates += [Variant(recurrent=True)] if self._engine.has_recurrence else []
        if self._seconds * work >= COMPILE_PAYS:
            candidates += [replace(v, compiled=True) for v in (Variant(), *candidates) if not v.recurrent]
        for candidate in candidates:
            try:
                times[candidate] = self._time(candidate, trial, model, plan)
            except Exception as error:
                _log.info("engine: torch_workers, %s does not run here (%s)", candidate, type(error).__name__)
        best = min(times, key=lambda v: times[v] * (LAST if v == Variant(channels_last=True) else 1.0))
        _remember(key, {"variant": asdict(best), "seconds_per_sample": {str(v): t for v, t in times.items()}})
        return best

    def _time(self, variant: Variant, trial: ClientData, model: Model, plan: Plan) -> float:
        """Seconds per sample, best of three after one to warm up."""
        engine = VariantEngine(self._model, trial, variant)
        short = Plan(epochs=1, batch_size=plan.batch_size, lr=1e-4, optimiser=plan.optimiser, objective=plan.objective)
        only, best = np.zeros(1, np.int64), float("inf")
        for _ in range(4):
            start = time.perf_counter()
            engine.train(model, only, short)
            best = min(best, time.perf_counter() - start)
        return best / int(trial.train.sizes[0])


def _trial(data: ClientData, client: int, batch: int) -> ClientData:
    """A few batches of one client, as the only client."""
    own = data.train.of(client)
    at = slice(own.start, min(own.stop, own.start + TRIAL_BATCHES * batch))
    start = np.array([0, at.stop - at.start], np.int64)
    part = Part(start, data.train.index[at], data.train.label[at], data.train.clean[at])
    return replace(data, train=part, validation=Part(np.zeros(2, np.int64), *(np.empty(0, np.int64),) * 3))


def _key(engine: VariantEngine, batch: int) -> str:
    """What a measurement holds for: processor, torch, module and batch size."""
    torch = engine._torch
    parts = [platform.machine(), platform.processor(), str(os.cpu_count()), torch.__version__, str(batch)]
    parts += [repr(engine._flat.module), str([tuple(p.shape) for p in engine._flat.params])]
    parts += ["samples held"]  # choices made before a client's samples were brought together do not count
    parts += ["recurrent kernels"] if engine.has_recurrence else []  # choices made before there were any do not count
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as info:
        parts += sorted({line for line in info if line.startswith("model name")})
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:24]


def _remembered() -> dict[str, Any]:
    """What was measured before; nothing if the file is missing or damaged."""
    try:
        found = json.loads((cache_folder() / "engines.json").read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _remember(key: str, entry: dict[str, Any]) -> None:
    """Add one measurement; if the folder cannot be written, training continues without it."""
    with contextlib.suppress(OSError):
        folder = cache_folder()
        folder.mkdir(parents=True, exist_ok=True)
        draft = folder / f"engines.json.{os.getpid()}"
        draft.write_text(json.dumps({**_remembered(), key: entry}, indent=1))
        draft.replace(folder / "engines.json")
