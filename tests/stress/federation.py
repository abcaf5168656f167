"""The smallest federation that the round engine can run on: a world, a task and a method of a few lines each.

A reply adds 1 to the client's own entry of the model, and the number of the round in which it was sent out to another:
the model says who was used, how often, and for which request. Tests change the world to make clients misbehave.
"""

from __future__ import annotations

import numpy as np

from fedcohort.protocols import Aggregated, Trained
from fedcohort.sim.run_settings import RunSettings
from fedcohort.sim.simulation import Simulation
from fedcohort.types import Model, Part, Plan, Updates

SAMPLES = 10


class World:
    """Everybody is there, takes between 1 and 2 seconds, and tells the truth."""

    name, classes, digest = "plain", 2, "plain"

    def __init__(self, population):
        self.population = population
        rows = np.zeros(SAMPLES * population, np.int64)
        self.train = Part(SAMPLES * np.arange(population + 1), rows, rows, rows)
        self.validation = Part(np.zeros(population + 1, np.int64), rows[:0], rows[:0], rows[:0])

    def available(self, index, clock):
        return np.arange(self.population)

    def seconds(self, index, clients, work):
        return 1.0 + clients / self.population

    def dropped(self, index, clients, *, probe=False):
        return np.zeros(clients.size, np.bool_)

    def broken(self, index, clients):
        """Whose training fails."""
        return np.zeros(clients.size, np.bool_)

    def boasted(self, clients, answers):
        return answers

    def tamper(self, index, updates, signals):
        return updates, signals

    def profiles(self):
        return {"samples": self.train.sizes}


class Task:
    """Every update counts itself; every signal of client i is 1 + i."""

    name, classes, last_layer = "counting", 0, None
    provides = frozenset({"utility", "train_loss", "probe_loss"})

    def __init__(self, world, params=None):
        self.world, self.params = world, 2 * world.population if params is None else params
        self.layout = (slice(0, self.params),)

    def initial(self, rng):
        return Model(np.zeros(self.params, np.float32))

    def plan(self):
        return Plan()

    def delta(self, index, clients):
        out = np.zeros((clients.size, self.params), np.float32)
        rows = np.arange(clients.size)
        out[rows, clients], out[rows, self.world.population + clients] = 1.0, index + 1.0
        return out

    def train(self, model, clients, plan):
        ones = np.ones(clients.size, np.int64)
        updates = Updates(clients, self.delta(plan.round, clients), SAMPLES * ones.astype(np.float64), ones)
        failed = self.world.broken(plan.round, clients)
        reasons = {int(c): "training-failed" for c in clients[failed]}
        return Trained(updates, dict.fromkeys(plan.measure, 1.0 + clients), failed, reasons)

    def probe(self, model, clients, signals, plan):
        return dict.fromkeys(signals, 1.0 + clients)

    def evaluate(self, model, split):
        return {}

    def server_evaluator(self):
        return None

    def client_evaluator(self):
        return None

    def client_accuracy(self, model):
        return None


class Sum:
    """Adds up what came; remembers how many that were."""

    name, asynchronous = "sum", True

    def __init__(self):
        self.used = 0

    def prepare(self, plan, model, clients):
        return plan

    def aggregate(self, model, updates, context):
        self.used += len(updates)
        params = model.params + updates.delta.sum(axis=0, dtype=np.float32) if len(updates) else model.params
        return Aggregated(model.with_params(params), np.ones(len(updates), np.bool_))

    def state_dict(self):
        return {"used": np.array(self.used)}

    def load_state_dict(self, arrays):
        self.used = int(arrays["used"])


def simulated(selector, world, task=None, method=None, **settings):
    """A simulated run of these rounds."""
    settings = RunSettings(**{"rounds": 10**9, "deadline": 10.0, **settings})
    return Simulation(selector, method or Sum(), world, task or Task(world), settings)
