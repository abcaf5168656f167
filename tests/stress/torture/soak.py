"""A day of a deployment, and a long simulated run: whether memory, files and the cost of a round stay what they are.

The deployment is `CohortStrategy` over a grid in memory with virtual time, at least nine seconds per round, so that ten
thousand rounds are more than a day. Clients drop out (a tenth, at times a half), SuperNodes are restarted under new node ids, the
ServerApp ends in the middle of a round and is started again, syncs take up to three seconds, and the clock of the
machine jumps by up to a day in both directions.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import random
import resource
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from tests.flower.grid import FakeClient, FakeGrid, as_record, timing
from tests.stress.federation import World, simulated

from fedcohort.experiment.verification import verify
from fedcohort.flower import CohortStrategy
from fedcohort.registry.lookup import make_selector
from fedcohort.sim.simulation import Simulation
from fedcohort.storage.disk import DISK, Disk
from fedcohort.storage.journal import Journal
from fedcohort.storage.snapshots import Snapshots
from storage import scratch

logging.getLogger("flwr").setLevel(logging.CRITICAL)
CLIENTS, COHORT, DEADLINE = 30, 5, 30.0
RESTARTS, STORMS = 20, 200  # of the ServerApp and of SuperNodes, per ten thousand rounds


class Ended(BaseException):
    """The ServerApp ends here."""


class Day(FakeGrid):
    """The network of one day: time, faults, and what is counted."""

    def __init__(self, rounds: int, seed: int) -> None:
        self.rng, self.rounds, self.done = random.Random(seed), rounds, 0
        super().__init__([Client(str(i), self) for i in range(CLIENTS)])
        self.ends = set(self.rng.sample(range(1, rounds), max(rounds * RESTARTS // 10_000, 1)))
        self.storms = set(self.rng.sample(range(1, rounds), max(rounds * STORMS // 10_000, 1)))
        self.number, self.jump = 5000, 0.0
        self.figures = {"ServerApp restarted": 0, "SuperNodes restarted": 0, "clock jumps": 0}

    def next_round(self) -> None:
        """Between two rounds: restarts, jumps of the clock, and a process that ends soon."""
        self.done += 1
        self.pushed.clear()
        if self.done in self.storms:
            old = self.rng.choice(list(self.clients))
            self.number += 1
            self.clients[self.number] = self.clients.pop(old)
            self.figures["SuperNodes restarted"] += 1
        if self.rng.random() < 0.01:
            self.jump = self.rng.uniform(-86_400.0, 86_400.0)
            self.figures["clock jumps"] += 1

    def sleep(self, seconds: float) -> None:
        if self.done in self.ends:
            self.ends.remove(self.done)
            self.figures["ServerApp restarted"] += 1
            raise Ended
        before = self.now
        super().sleep(seconds)
        self.now = max(self.now, np.nextafter(before, np.inf))  # less than a clock can show is no time

    def wall(self) -> float:
        """The clock of the machine."""
        return 1.7e9 + self.now + self.jump


class Client(FakeClient):
    """Takes two to twelve seconds; is silent in a tenth of its rounds, and in half of them in every tenth hour."""

    def __init__(self, name: str, day: Day) -> None:
        super().__init__(name, provides=["samples", "utility"], utility=1.0 + int(name))
        self.day = day

    def delay(self, message: Any) -> float | None:
        self.seen.clear()
        if message.metadata.message_type != "train":
            return 0.1
        bad = int(self.day.now / 3600.0) % 10 == 9
        if self.day.rng.random() < (0.5 if bad else 0.1):
            return None
        return self.day.rng.uniform(2.0, 12.0)


def deployment(rounds: int, seed: int) -> dict[str, Any]:
    """Figures of the day; at its end every cohort is chosen again from the journal."""
    day, marks = Day(rounds, seed), Marks(rounds)
    with scratch() as folder, _slow_disk(day), mock.patch("time.time", day.wall):
        finished = False
        while not finished:
            keys = {"cohort_size": COHORT, "deadline": DEADLINE, "seed": seed, "state_dir": folder}
            strategy = CohortStrategy(method="fedavg", selector="oort", **keys, **timing(day))
            _each_round(strategy, lambda: (day.next_round(), marks.take(day.done, folder)))
            with contextlib.suppress(Ended):
                strategy.start(day, as_record({"w": np.zeros(64, np.float32)}), num_rounds=rounds)
                finished = True
        told = sum(r.kind == "tell" for r in Journal.read(folder / "journal.db").records())
        replayed = verify(folder).rounds
    hours = {"hours": round((day.now - 100.0) / 3600.0, 1)}
    return {"rounds": told, "rounds replayed": replayed, **hours, **day.figures, **marks.figures()}


def simulator(rounds: int, seed: int) -> dict[str, Any]:
    """The same for the simulator, which is stopped and resumed ten times."""
    marks, done = Marks(rounds), 0
    with scratch() as folder:
        while done < rounds:
            simulation = _simulated(folder, seed)
            for _ in islice(simulation.steps(), min(max(rounds // 10, 1), rounds - done)):
                done += 1
                marks.take(done, folder)
            simulation.session.journal.close()
        told = sum(r.kind == "tell" for r in Journal.read(folder / "journal.db").records())
    return {"rounds": told, "resumed": 9, **marks.figures()}


def _simulated(folder: Path, seed: int) -> Simulation:
    path = folder / "journal.db"
    begun = path.exists()
    journal = Journal.open(path) if begun else Journal.create(path, {"kind": "soak"})
    simulation = simulated(make_selector("oort"), World(100), cohort_size=COHORT, seed=seed)
    simulation.attach(journal, Snapshots(folder / "snapshots"))
    if begun:
        simulation.resume()
    return simulation


def _each_round(strategy: CohortStrategy, after: Any) -> None:
    """Call this after every round of the strategy."""
    begin = strategy._begin

    def begun(*args: Any) -> Any:
        engine = begin(*args)
        inner = engine.round

        def one(**keys: Any) -> Any:
            out = inner(**keys)
            after()
            return out

        engine.round = one
        return engine

    strategy._begin = begun  # type: ignore[method-assign]


@contextlib.contextmanager
def _slow_disk(day: Day) -> Iterator[None]:
    """Every twentieth sync takes up to three seconds of virtual time."""

    def sync(path: Path) -> None:
        Disk.sync(DISK, path)
        if day.rng.random() < 0.05:
            day.now += day.rng.uniform(0.0, 3.0)

    vars(DISK)["sync"] = sync
    try:
        yield
    finally:
        vars(DISK).clear()


class Marks:
    """Memory, files and processor time at ten moments."""

    def __init__(self, rounds: int) -> None:
        self.every, self.rows = max(rounds // 10, 1), []
        self.rows.append((0, time.process_time(), 0.0, 0, 0))

    def take(self, done: int, folder: Path) -> None:
        """After a round."""
        if done % self.every == 0:
            gc.collect()
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            memory = pages * resource.getpagesize() / 2**20
            with contextlib.closing(DISK.connect(folder / "journal.db", read_only=True)) as db:
                (journal,) = db.execute("SELECT SUM(LENGTH(body)) FROM record").fetchone()
            others = (p for p in folder.rglob("*") if p.is_file() and not p.name.startswith("journal.db"))
            self.rows.append((done, time.process_time(), memory, journal, sum(p.stat().st_size for p in others)))

    def figures(self) -> dict[str, Any]:
        """The second tenth beside the last: the first fills caches."""
        first, second, *_, before, last = self.rows[1:]
        many = self.every
        return {
            "ms per round, second tenth": round(1e3 * (second[1] - first[1]) / many, 2),
            "ms per round, last tenth": round(1e3 * (last[1] - before[1]) / many, 2),
            "MB of memory after a tenth": round(first[2], 1),
            "MB of memory at the end": round(last[2], 1),
            "journal bytes per round, second tenth": (second[3] - first[3]) // many,
            "journal bytes per round, last tenth": (last[3] - before[3]) // many,
            "bytes of other files after a tenth": first[4],
            "bytes of other files at the end": last[4],
        }
