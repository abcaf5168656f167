"""The torch_workers engine: any `nn.Module`, in the fastest way PyTorch has on this machine.

The semantics are those of torch_reference. Variants (channels-last, torch.compile) are timed once per machine, model
and batch size on a few real batches, and the fastest is remembered in a JSON file of the cache folder. Clients are
distributed over single-threaded processes when a round is long enough to pay for them. A variant or a process that
fails is not used; the log says so.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import platform
import subprocess
import sys
import time
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcohort.core.constraints import CountOrZero
from fedcohort.engines.cache import cache_folder
from fedcohort.engines.interface import ClientData, LossStats
from fedcohort.engines.networks import Network
from fedcohort.engines.recipe import Factory
from fedcohort.engines.steps import check_plan
from fedcohort.engines.torch_workers import messages as wire
from fedcohort.engines.torch_workers.variant import Variant, VariantEngine
from fedcohort.errors import TrainingError, checked
from fedcohort.protocols import Trained
from fedcohort.types import Index, Model, Objective, Part, Plan, Real

PROCESSES_PAY = 2.0  # processes are started for rounds with at least so many seconds of training
COMPILE_PAYS = 20.0  # and torch.compile is tried for rounds with at least so many
TRIAL_BATCHES = 4

_log = logging.getLogger("fedcohort.engine")


class WorkersEngine:
    """Trains any module in single-threaded processes; how exactly is decided at the first training."""

    name = "torch_workers"

    @checked
    def __init__(self, model: Network | Factory, data: ClientData, workers: CountOrZero = 0) -> None:
        """`workers=0` means one process per processor; 1 trains in this process."""
        self._model, self._data = model, data
        self.workers = workers or os.cpu_count() or 1
        self._engine = VariantEngine(model, data, Variant())
        self.variant: Variant | None = None  # decided at the first training
        self._seconds = 0.0  # per sample and epoch
        self._processes: _Processes | None = None
        self._processes_failed = self.workers == 1
        self.n_params = self._engine.n_params
        self.last_layer = self._engine.last_layer

    def train(self, model: Model, clients: Index, plan: Plan) -> Trained:
        """Local training of each client from this model."""
        check_plan(plan, clients.size, self.n_params)
        work = self._data.train.sizes[clients] * plan.epochs_of(clients.size)
        if self.variant is None and work.any():
            self._decide(model, clients, plan, work)
        pays = self._seconds * float(work.sum()) >= PROCESSES_PAY and np.count_nonzero(work) > 1
        if (pays or self._processes) and not self._processes_failed:
            out = self._train_in_processes(model, clients, plan, work)
            if out is not None:
                return out
        return self._engine.train(model, clients, plan)

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

    def soft_gradient(self, params: Real, x: NDArray[np.float32], target: Real) -> tuple[float, Real]:
        """Mean cross-entropy against soft targets, and its gradient."""
        return self._engine.soft_gradient(params, x, target)

    def close(self) -> None:
        """End the processes."""
        if self._processes is not None:
            self._processes.close()
            self._processes = None

    def _train_in_processes(self, model: Model, clients: Index, plan: Plan, work: Index) -> Trained | None:
        try:
            if self._processes is None:
                self._processes = _Processes(self._model, self._data, self.variant or Variant(), self.workers)
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
        candidates = [Variant(channels_last=True)] if self._data.x.ndim == 4 else []
        candidates += [Variant(recurrent=True)] if self._engine.has_recurrence else []
        if self._seconds * work >= COMPILE_PAYS:
            candidates += [replace(v, compiled=True) for v in (Variant(), *candidates) if not v.recurrent]
        for candidate in candidates:
            try:
                times[candidate] = self._time(candidate, trial, model, plan)
            except Exception as error:
                _log.info("engine: torch_workers, %s does not run here (%s)", candidate, type(error).__name__)
        best = min(times, key=lambda v: times[v])
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


class _Processes:
    """Worker processes, each with the same data mapped and a module of its own."""

    def __init__(self, model: Network | Factory, data: ClientData, variant: Variant, size: int) -> None:
        described = wire.describe(model)
        if described is None:
            raise ValueError("the model's factory cannot be imported by another process")
        self._shared = wire.Shared(wire.data_arrays(data))
        one = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        command = [sys.executable, "-m", "fedcohort.engines.torch_workers.worker_process"]
        self._workers: list[subprocess.Popen[bytes]] = []
        try:
            for _ in range(size):
                self._workers.append(
                    subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **one})
                )
            hello = {"folder": self._shared.path, "classes": data.classes, "model": described, "path": sys.path}
            for worker in self._workers:
                wire.send(_in(worker), {**hello, "variant": asdict(variant)}, {})
            for worker in self._workers:
                wire.receive(_out(worker))
        except BaseException:
            self.close()
            raise

    def train(self, model: Model, clients: Index, plan: Plan, work: Index) -> Trained:
        """Distribute the clients, the largest first, each to the process with the least to do."""
        load, shares = [0.0] * len(self._workers), [list[int]() for _ in self._workers]
        for row in np.argsort(-work, kind="stable").tolist():
            least = min(range(len(load)), key=load.__getitem__)
            load[least] += max(float(work[row]), 1.0)
            shares[least].append(row)
        busy = [(w, np.array(sorted(rows), np.int64)) for w, rows in zip(self._workers, shares, strict=True) if rows]
        for worker, rows in busy:
            wire.send(_in(worker), *wire.pack_plan(plan, model, clients, rows))
        answers = [(rows, *wire.receive(_out(worker))) for worker, rows in busy]
        for _, text, _ in answers:
            if "error" in text:
                raise TrainingError(*text["error"])
        return wire.merge(clients, answers)

    def close(self) -> None:
        """End the processes and remove what they shared."""
        for worker in self._workers:
            with contextlib.suppress(OSError):
                _in(worker).close()
        for worker in self._workers:
            try:
                worker.wait(5.0)
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()
            _out(worker).close()
        self._shared.close()


def _in(worker: subprocess.Popen[bytes]) -> Any:
    return worker.stdin


def _out(worker: subprocess.Popen[bytes]) -> Any:
    return worker.stdout


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
