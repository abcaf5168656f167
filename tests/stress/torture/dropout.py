"""Drop-out: do enough come back, how many are asked for it, and does every round end? All of it through the engine."""

from __future__ import annotations

import logging
from collections import Counter

import numpy as np
from tests.flower.grid import FakeClient, FakeGrid, as_record, timing
from tests.stress.federation import Sum, Task, World, simulated
from tests.stress.rubbish import with_extra

from fedcohort.flower import CohortStrategy
from fedcohort.rounds.history import History
from fedcohort.rounds.over_selection import enough_for
from fedcohort.selectors.uniform import Uniform

logging.getLogger("flwr").setLevel(logging.CRITICAL)
DEADLINE = 10.0
PATIENCE = 2000  # questions to the network in one round after which it is said to hang
HANGING = {"cohort_size": 10, "deadline": DEADLINE, "min_replies": 5, "back_off": 1.0, "over_select": "adaptive"}


class Hung(Exception):
    """A round does not end."""


class One(Task):
    """Updates of one number: the rounds are what is looked at."""

    def __init__(self, world):
        super().__init__(world, 1)

    def delta(self, index, clients):
        return np.ones((clients.size, 1), np.float32)


class Dropping(World):
    """Clients drop out at `rate(round)`; the others take between 1 and 2 seconds, or `mean` on average."""

    def __init__(self, population, rate, seed, mean=None):
        super().__init__(population)
        self.rate, self.seed, self.mean = rate, seed, mean

    def _draw(self, index, what):
        return np.random.default_rng((self.seed, what, index))

    def dropped(self, index, clients, *, probe=False):
        return (self._draw(index, 0).random(self.population) < self.rate(index))[clients]

    def seconds(self, index, clients, work):
        if self.mean is None:
            return super().seconds(index, clients, work)
        return self._draw(index, 1).exponential(self.mean, self.population)[clients]


def _rounds(engine, many):
    """The rows of so many rounds; nothing is kept of them."""
    for _ in range(many):
        yield engine.round()
        engine.history = History(engine.backend.population)


def _adaptive(rate, seed, rule="adaptive", size=100):
    world = Dropping(1000, rate, seed)
    keys = {"cohort_size": size, "over_select": rule, "deadline": DEADLINE, "seed": seed}
    return simulated(Uniform(), world, One(world), Sum(), **keys).engine


def reach(rate: float, rounds: int, seed: int, rule: str | float = "adaptive", size: int = 100) -> dict:
    """Share of rounds with `size` replies, and requests per reply wanted, the drop-out unknown at the start."""
    engine = _adaptive(lambda index: rate, seed, rule, size)
    rows = [(row["ok"] >= size, row["asked"]) for row in _rounds(engine, rounds)]
    reached, asked = np.mean(rows, axis=0)
    optimum = enough_for(size, rate) / size
    return {"rounds": rounds, "reached": float(reached), "asked": float(asked) / size, "optimum": optimum}


def change(seed: int) -> dict:
    """The drop-out jumps from 10 to 50 % and back: rounds missed in the 200 that follow each jump."""
    engine = _adaptive(lambda index: (0.1, 0.5, 0.1)[index // 200], seed)
    missed = np.array([row["ok"] < 100 for row in _rounds(engine, 600)]).reshape(3, 200).sum(axis=1).tolist()
    return {"missed at 10 %": missed[0], "after the jump to 50 %": missed[1], "after the jump back": missed[2]}


def _phases(index):
    return (0.1, 0.3, 0.5, 1.0)[index // 50 % 4] if index % 997 else 1.0


def _policy(buffer_size):
    return {"cohort_size": 10, "deadline": DEADLINE, "buffer_size": buffer_size} if buffer_size else HANGING


def _ended(engine, rounds, buffer_size) -> dict:
    """How rounds ended, how many did not, and how many took longer than they may."""
    ends, overdue, done = Counter(), 0, 0
    try:
        for row in _rounds(engine, rounds):
            done += 1
            ends["abandoned" if "abandoned" in row else engine.ended] += 1
            overdue += not buffer_size and row["seconds"] > DEADLINE * (1 + 1e-9)
            late = engine.out.rows.get("departed", np.empty(0))[engine.out.running]
            overdue += bool(late.size) and engine.backend.clock - late.min() > DEADLINE * (1 + 1e-9)
        hung = 0
    except Hung:
        hung = 1
    return {"rounds": done, "hung": hung, "longer than the deadline": int(overdue), **dict(sorted(ends.items()))}


def simulated_hangs(rounds: int, seed: int, buffer_size: int = 0) -> dict:
    """Simulated clients that answer early, late, twice or never; drop-out of 10 to 100 %."""
    world = Dropping(300, _phases, seed, mean=3.0)
    engine = simulated(Uniform(), world, One(world), Sum(), seed=seed, **_policy(buffer_size)).engine
    inner, calls = engine.backend.replies, Counter()

    def replies(until, enough):
        index = engine.session.index
        if calls[index] > PATIENCE:
            raise Hung
        calls[index] += 1
        calls.pop(index - 1, None)
        here = inner(until, enough)
        return with_extra(here, np.flatnonzero(here.updates.clients % 7 == 0), np.array([10**6]))

    engine.backend.replies = replies
    return _ended(engine, rounds, buffer_size)


class Unsteady(FakeClient):
    """Answers early, late, or never."""

    def __init__(self, name, seed):
        super().__init__(name, samples=10)
        self.rng = np.random.default_rng((seed, int(name)))

    def delay(self, message):
        self.seen.clear()
        if message.metadata.message_type != "train":
            return 0.1
        index = int(message.metadata.group_id) - 1
        return None if self.rng.random() < _phases(index) else float(self.rng.exponential(3.0))


class Network(FakeGrid):
    """Delivers every seventh client's replies twice, and counts how often it is waited for."""

    def __init__(self, clients):
        super().__init__(clients)
        self.waits, self.tamper = 0, lambda m: [m, m] if m.metadata.src_node_id % 7 == 0 else [m]

    def push_messages(self, messages):
        self.waits = 0
        self.pushed.clear()
        return super().push_messages(messages)

    def sleep(self, seconds):
        self.waits += 1
        if self.waits > PATIENCE:
            raise Hung
        before = self.now
        super().sleep(seconds)
        self.now = max(self.now, np.nextafter(before, np.inf))


def flower_hangs(rounds: int, seed: int, buffer_size: int = 0) -> dict:
    """The same on Flower, over a grid in memory."""
    grid = Network([Unsteady(f"{i:02}", seed) for i in range(40)])
    strategy = CohortStrategy(method=Sum(), selector="uniform", seed=seed, **_policy(buffer_size), **timing(grid))
    engine = strategy._begin(grid, as_record({"w": np.zeros(4, np.float32)}), 1e6)
    return _ended(engine, rounds, buffer_size)
