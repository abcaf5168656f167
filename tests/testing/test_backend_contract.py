"""Both backends keep the contract, and the kit catches backends that do not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from flwr.app import Error, MetricRecord, RecordDict
from tests.flower.grid import APP_RAISED, FakeClient, FakeGrid, as_record, timing

from fedcohort.experiment.config import RunConfig
from fedcohort.experiment.runs import build
from fedcohort.flower import CohortStrategy
from fedcohort.testing import BackendContract


class TestSimulator(BackendContract):
    def make(self):
        config = RunConfig(
            task="digits-softmax",
            world="mixed-v1(clients=12)",
            cohort_size=self.cohort_size,
            buffer_size=self.buffer_size,
            engine="numpy",
        )
        simulation = build(config)
        return simulation.federation, simulation.model


class TestSimulatorWithoutRounds(TestSimulator):
    buffer_size = 2


class TestFlower(BackendContract):
    def make(self):
        clients = [FakeClient(str(i), seconds=1.0 + i) for i in range(8)]
        clients[2].train = lambda message: Error(APP_RAISED, "broken")
        clients[3].train = lambda message: RecordDict({"metrics": MetricRecord({"num-examples": 1})})  # no model in it
        grid = FakeGrid(clients)
        strategy = CohortStrategy(
            method="fedavg",
            selector="uniform",
            cohort_size=self.cohort_size,
            buffer_size=self.buffer_size,
            deadline=50.0,
            **timing(grid),
        )
        engine = strategy._begin(grid, as_record({"w": np.zeros((2, 3), np.float32)}), 1e6)
        return engine.backend, engine.model

    def method(self, backend):
        return backend.aggregator


class TestFlowerWithoutRounds(TestFlower):
    buffer_size = 2


class Broken(TestSimulator):
    """A simulator with one promise broken."""

    def __init__(self, **methods):
        self.methods = methods

    def make(self):
        backend, model = super().make()
        for name, change in self.methods.items():
            inner = getattr(backend, name)
            setattr(backend, name, lambda *a, _inner=inner, _change=change, **k: _change(_inner(*a, **k)))
        return backend, model


def twice(arrivals):
    return replace(arrivals, clients=np.repeat(arrivals.clients[:1], arrivals.clients.size))


@pytest.mark.parametrize(
    ("methods", "test"),
    [
        ({"available": lambda found: found[::-1]}, "test_those_available_are_sorted_slots_of_the_population"),
        ({"replies": twice}, "test_every_dispatched_client_arrives_once"),
        ({"replies": lambda a: replace(a, updates=a.updates.rows(slice(1, None)))}, "test_rows_are_aligned"),
        ({"replies": lambda a: replace(a, seconds=-a.seconds - 1)}, "test_rows_are_aligned"),
        ({"replies": lambda a: replace(a, reasons={}, outcome=a.outcome * 0 + 2)}, "test_rows_are_aligned"),
    ],
)
def test_the_kit_catches(methods, test):
    with pytest.raises(AssertionError):
        getattr(Broken(**methods), test)()
