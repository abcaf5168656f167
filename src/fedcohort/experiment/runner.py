"""Many runs on one machine: worker processes of one thread each, any of which may die without harming the others.

A worker is a separate Python process that talks in JSON lines (`experiment.sweep_worker`). When one dies, its run is
given to a new worker, which resumes from the last snapshot; a run that kills its worker several times has failed.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import IO, Any

from fedcohort.errors import check

ATTEMPTS = 3  # workers that a run may kill before it counts as failed
ONE_THREAD = dict.fromkeys(
    (
        "OMP_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "MKL_NUM_THREADS",
        "BLIS_NUM_THREADS",
        "VECLIB_MAXIMUM_THREADS",
        "NUMEXPR_NUM_THREADS",
        "NUMBA_NUM_THREADS",
    ),
    "1",
)


@dataclass(frozen=True, slots=True)
class Job:
    """One run to do: its stable id, its configuration as plain values, and where it goes."""

    id: str
    config: dict[str, Any]
    folder: str
    rounds: int


@dataclass(frozen=True, slots=True)
class Event:
    """News of a job: "round" (one has ended), "done", "failed" (error) or "lost" (its worker died; it is retried)."""

    job: Job
    kind: str
    round: int = 0
    text: str = ""  # the error, or how the run was obtained
    notes: tuple[str, ...] = ()  # what a person must know of a run that is done


OnEvent = Callable[[Event], None]


@dataclass
class _Worker:
    process: subprocess.Popen[bytes]
    stderr: IO[bytes]  # its standard error
    job: Job | None = None
    part: bytes = b""
    fd: int = field(init=False)

    def __post_init__(self) -> None:
        assert self.process.stdout is not None
        self.fd = self.process.stdout.fileno()

    def give(self, job: Job) -> None:
        """Hand over a job; a worker that is gone is noticed when it is read from."""
        self.job = job
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            line = json.dumps({"config": job.config, "folder": job.folder}) + "\n"
            self.process.stdin.write(line.encode())
            self.process.stdin.flush()

    def news(self) -> list[dict[str, Any]] | None:
        """Complete messages that have arrived; None when the worker is gone."""
        data = os.read(self.fd, 1 << 16)
        if not data:
            return None
        *lines, self.part = (self.part + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def exit_reason(self) -> str:
        """Why it died, as far as can be said."""
        code = self.process.wait()
        self.stderr.seek(0)
        said = self.stderr.read().decode(errors="replace").strip().splitlines()
        how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        return f"its worker {how}" + (f" ({said[-1]})" if said else "")


def run_local(jobs: Iterable[Job], on_event: OnEvent, workers: int = 0) -> None:
    """Do all jobs on this machine; returns when each is done or failed."""
    check(workers >= 0, f"workers = {workers}", "a number of processes is not negative", "use 0 for all cores")
    _Pool(deque(jobs), on_event, workers or len(os.sched_getaffinity(0))).run()


class _Pool:
    def __init__(self, waiting: deque[Job], on_event: OnEvent, workers: int) -> None:
        self.waiting, self.on_event, self.most = waiting, on_event, workers
        self.workers: dict[int, _Worker] = {}
        self.deaths: dict[str, int] = {}
        self.poll = selectors.DefaultSelector()

    def run(self) -> None:
        """Work until every job is done. Whatever interrupts this ends the workers."""
        try:
            self._fill()
            while self.workers:
                for key, _ in self.poll.select():
                    self._hear(self.workers[key.fd])
                self._fill()
        finally:
            for worker in list(self.workers.values()):
                self._dismiss(worker, at_once=True)
            self.poll.close()

    def _fill(self) -> None:
        while self.waiting and len(self.workers) < self.most:
            worker = _start()
            self.workers[worker.fd] = worker
            self.poll.register(worker.fd, selectors.EVENT_READ)
            worker.give(self.waiting.popleft())

    def _hear(self, worker: _Worker) -> None:
        messages = worker.news()
        if messages is None:
            self._on_worker_exit(worker)
            return
        for message in messages:
            job = worker.job
            assert job is not None
            if message["event"] == "round":
                self.on_event(Event(job, "round", message["round"]))
                continue
            worker.job = None
            text = message.get("error") or message.get("how", "")
            self.on_event(Event(job, message["event"], job.rounds, text, tuple(message.get("notes", ()))))
            if self.waiting:
                worker.give(self.waiting.popleft())
            else:
                self._dismiss(worker)

    def _on_worker_exit(self, worker: _Worker) -> None:
        """A worker died: its job goes to another one, unless it has killed too many."""
        why, job = worker.exit_reason(), worker.job
        self._dismiss(worker)
        if job is None:
            return
        self.deaths[job.id] = self.deaths.get(job.id, 0) + 1
        if self.deaths[job.id] >= ATTEMPTS:
            self.on_event(Event(job, "failed", text=f"{why}, {ATTEMPTS} times"))
        else:
            self.on_event(Event(job, "lost", text=why))
            self.waiting.appendleft(job)

    def _dismiss(self, worker: _Worker, at_once: bool = False) -> None:
        self.workers.pop(worker.fd)
        self.poll.unregister(worker.fd)
        if at_once:
            worker.process.kill()  # a run is durable after every round: there is nothing to save
        for stream in (worker.process.stdin, worker.process.stdout):
            with contextlib.suppress(BrokenPipeError):
                if stream is not None:
                    stream.close()
        worker.process.wait()
        worker.stderr.close()


def _start() -> _Worker:
    """A worker with one thread, in a session of its own: Ctrl-C reaches the sweep, and the sweep ends its workers."""
    stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed when the worker is dismissed
    process = subprocess.Popen(
        [sys.executable, "-m", "fedcohort.experiment.sweep_worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        env={**os.environ, **ONE_THREAD, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        start_new_session=True,
    )
    return _Worker(process, stderr)
