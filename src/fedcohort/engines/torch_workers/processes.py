"""The processes of the torch_workers engine: how they are started, given work and ended.

A model that another process can make by itself (a network, or a function it can import) is trained by processes that
start afresh and map the data. One that lives in a script, in a notebook or in a closure is trained by copies of this
process (`fork`), where that is safe: on Linux, and without a GPU, whose library does not survive it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import warnings
from dataclasses import asdict
from typing import IO, Any

import numpy as np

from fedcohort.engines.interface import ClientData
from fedcohort.engines.recipe import Modeled
from fedcohort.engines.shared_buffers import SharedPool
from fedcohort.engines.torch_workers import messages as wire
from fedcohort.engines.torch_workers.variant import Variant, VariantEngine
from fedcohort.engines.torch_workers.worker_process import serve
from fedcohort.errors import TrainingError
from fedcohort.protocols import Trained
from fedcohort.types import Index, Model, Plan

PATIENCE = 5.0  # seconds that a process has to end when it is told to


class Processes:
    """Worker processes, each with the same data and a module of its own."""

    def __init__(self, model: Modeled, data: ClientData, variant: Variant, size: int) -> None:
        """Raises ValueError where no other process can have this model."""
        self._workers: list[_Fresh | _Copy] = []
        self._shared: wire.Shared | None = None
        self._updates = SharedPool()
        described = wire.describe(model)
        if described is None and not _can_fork():
            raise ValueError("the model is not importable, and this process cannot be copied")
        try:
            if described is None:
                for _ in range(size):
                    self._workers.append(_Copy(model, data, variant, [f.fileno() for f in self._streams()]))
            else:
                self._start(described, data, variant, size)
            for worker in self._workers:
                wire.receive(worker.source)
        except BaseException:
            self.close()
            raise

    def train(self, model: Model, clients: Index, plan: Plan, work: Index) -> Trained:
        """Distribute the clients, the largest first, each to the process with the least to do."""
        busy = [(w, rows) for w, rows in zip(self._workers, shares(work, len(self._workers)), strict=True) if rows.size]
        delta = self._updates.take(clients.size, model.params.size)
        place = self._updates.place_of(delta)
        for worker, rows in busy:
            wire.send(worker.sink, *wire.pack_plan(plan, model, clients, rows, place))
        answers = [(rows, *wire.receive(worker.source)) for worker, rows in busy]
        for _, text, _ in answers:
            if "error" in text:
                raise TrainingError(*text["error"])
        return wire.merge(clients, answers, delta)

    def close(self) -> None:
        """End the processes and remove what they shared."""
        for worker in self._workers:
            with contextlib.suppress(OSError):
                worker.sink.close()
        for worker in self._workers:
            worker.end()
            worker.source.close()
        if self._shared is not None:
            self._shared.close()

    def _streams(self) -> list[IO[bytes]]:
        return [stream for worker in self._workers for stream in (worker.source, worker.sink)]

    def _start(self, described: dict[str, Any], data: ClientData, variant: Variant, size: int) -> None:
        self._shared = wire.Shared(wire.data_arrays(data))
        hello = {"folder": self._shared.path, "classes": data.classes, "model": described, "path": sys.path}
        self._workers += [_Fresh() for _ in range(size)]
        for worker in self._workers:
            wire.send(worker.sink, {**hello, "variant": asdict(variant)}, {})


def shares(work: Index, count: int) -> list[Index]:
    """Rows for each of `count` workers: the largest first, each to the one with the least to do."""
    load, rows = [0.0] * count, [list[int]() for _ in range(count)]
    for row in np.argsort(-work, kind="stable").tolist():
        least = min(range(count), key=load.__getitem__)
        load[least] += max(float(work[row]), 1.0)
        rows[least].append(row)
    return [np.array(sorted(each), np.int64) for each in rows]


class _Fresh:
    """A process that starts with nothing."""

    def __init__(self) -> None:
        one = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        command = [sys.executable, "-m", "fedcohort.engines.torch_workers.worker_process"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **one}
        )
        self.source: Any = self._process.stdout
        self.sink: Any = self._process.stdin

    def end(self) -> None:
        """Wait for it, not for ever."""
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class _Copy:
    """A copy of this process, which has the model and the data already. `foreign` are other workers' files."""

    def __init__(self, model: Modeled, data: ClientData, variant: Variant, foreign: list[int]) -> None:
        orders, answers = os.pipe(), os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # this process may have threads; the copy uses one
            self._pid = os.fork()
        if not self._pid:
            _live(model, data, variant, (orders[0], answers[1]), [*foreign, orders[1], answers[0]])
        os.close(orders[0])
        os.close(answers[1])
        self.source: Any = os.fdopen(answers[0], "rb")
        self.sink: Any = os.fdopen(orders[1], "wb")

    def end(self) -> None:
        """It ends when nobody gives it orders any more."""
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)


def _live(model: Modeled, data: ClientData, variant: Variant, streams: tuple[int, int], foreign: list[int]) -> None:
    """The life of a copy; it never returns to what this process was doing."""
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for file in foreign:
            os.close(file)
        engine = VariantEngine(model, data, variant)
        engine.stay_single()
        serve(os.fdopen(streams[0], "rb"), os.fdopen(streams[1], "wb"), engine)
        code = 0
    finally:
        os._exit(code)


def _can_fork() -> bool:
    from fedcohort.engines.torch_device import resolve

    return sys.platform == "linux" and resolve("auto") == "cpu"
