"""Parity: simulator, CohortStrategy's own driver, Flower's own loop and replay from the journal choose the same.

The simulator runs first and every reply is written down: local weights, signals, seconds, failures, NaN. The clients of
an in-memory grid then answer with exactly those. If the adapter lost, reordered or altered anything that a selector can
see, it would ask a client that the simulator did not ask, and there is no reply for that one.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Error, MetricRecord, RecordDict
from flwr.serverapp.strategy import Strategy
from tests.flower.grid import APP_RAISED, FakeClient, FakeGrid, as_record, timing

from fedcohort.experiment.config import RunConfig
from fedcohort.experiment.run import build
from fedcohort.flower import CohortStrategy, wire
from fedcohort.flower.model_layout import ModelLayout
from fedcohort.flower.server.clients import Clients
from fedcohort.flower.server.flower_replay import replay
from fedcohort.registry import lookup as registry
from fedcohort.signals import SIGNALS
from fedcohort.types import Model, Outcome

ROUNDS, SIZE, POPULATION, SEED = 5, 4, 12, 3
TICK = 2.0**-10  # times are multiples of this, so that sums and differences of them are exact
WRAPPED = (
    "warm-up(inner='oort', rounds=2)",
    "cool-down(inner='flash', rounds=1)",
    "explore(inner='tifl', share=0.3)",
    "floor(inner='cool-down(inner=\"oort\", rounds=1)')",
    "quota(inner='fedacs')",
    "probability-cap(inner='proportional')",
    "blocklist(inner='power-of-choice')",
)
SELECTORS = (*registry.names("selector"), *WRAPPED)


class Recorded:
    """A simulation whose every reply is written down."""

    def __init__(self, selector: str, *, over_select: float, faults: bool, alike: bool = False) -> None:
        config = RunConfig(
            selector=selector,
            task="quadratic",
            world=f"dirichlet-0.1-v1(clients={POPULATION})",
            rounds=ROUNDS,
            cohort_size=SIZE,
            seed=SEED,
            over_select=over_select,
            **({"deadline": 40.0} if faults else {}),
        )
        self.sim = build(config)
        self.alike = alike  # everybody takes the same time
        self.faults, self.deadline = faults, min(self.sim.federation.deadline, 1e6)
        self.took, self.said, self.probes, self.there = {}, {}, {}, {}
        self.mode, self.probing = "train", {}
        self._world(), self._task(), self._received(), self._probe()
        self.sim.run()
        self.cohorts = [c.tolist() for c in self.sim.history.cohorts]

    def _world(self) -> None:
        world = self.sim.world
        spread = np.random.default_rng(1).uniform(1.0, 55.0, (ROUNDS, POPULATION))
        spread[:] = 8.0 if self.alike else spread

        def timed(index, clients, work):
            del work
            took = np.ceil(spread[index, clients] / TICK) * TICK
            kept = self.took if self.mode == "train" else self.probing
            kept.update({(index, int(c)): float(t) for c, t in zip(clients, took, strict=True)})
            return took

        def available(index, clock):
            here = np.setdiff1d(np.arange(POPULATION), [index % POPULATION, (5 * index + 1) % POPULATION])
            self.there[index] = here
            return here

        world = Proxy(world, seconds=timed, available=available, dropped=lambda i, c: np.zeros(c.size, bool))
        self.sim.world = self.sim.federation.world = world

    def _task(self) -> None:
        train = self.sim.task.train

        def failing(model, clients, plan):
            trained = train(model, clients, plan)
            failed = np.array([self.faults and (int(c) + plan.round) % 5 == 0 for c in clients], bool)
            reasons = {int(c): "broken" for c in clients[failed]}
            return replace(trained, failed=failed, reasons=reasons)

        self.sim.task = self.sim.federation.task = Proxy(self.sim.task, train=failing)

    def _received(self) -> None:
        received = self.sim.federation._received

        def over_the_wire(index, trained, cohort, on_time, wanted, model):
            updates, columns = received(index, trained, cohort, on_time, wanted, model)
            weights = model.params + updates.delta
            bad = np.array([self.faults and (int(c) + index) % 4 == 3 for c in updates.clients], bool)
            weights[bad] = np.nan
            for row, client in enumerate(updates.clients):
                signals = {n: v[row] for n, v in columns.items()}
                n, steps = int(updates.weight[row]), int(updates.steps[row])
                self.said[index, int(client)] = None if trained.failed[row] else (weights[row], n, steps, signals)
            return replace(updates, delta=weights - model.params), columns

        self.sim.federation._received = over_the_wire

    def _probe(self) -> None:
        probe = self.sim.federation.probe

        def answered(index, model, clients, names, plan):
            self.mode = "probe"
            answers, seconds, traffic = probe(index, model, clients, names, plan)
            self.mode = "train"
            for row, client in enumerate(answers.clients):
                self.probes[index, int(client)] = {n: v[row] for n, v in answers.signals.columns().items()}
            return answers, seconds, traffic

        self.sim.federation.probe = answered


class Proxy:
    """An object with some methods replaced."""

    def __init__(self, inner, **methods):
        self.__dict__.update(methods, _inner=inner)

    def __getattr__(self, name):
        return getattr(self._inner, name)


class Actor(FakeClient):
    """Answers what the simulator's client answered."""

    def __init__(self, slot: int, recorded: Recorded) -> None:
        super().__init__(f"client-{slot:02d}", provides=sorted(SIGNALS))
        self.slot, self.recorded = slot, recorded
        self.samples = int(recorded.sim.world.train.sizes[slot])

    def delay(self, message):
        if message.metadata.message_type == wire.REGISTER:
            return 0.0
        index = message.content[wire.REQUEST]["round"]
        probe = message.metadata.message_type == wire.PROBE
        if not probe and (index, self.slot) not in self.recorded.took:
            pytest.fail(f"round {index}: the simulator did not ask client {self.slot}")
        return (self.recorded.probing if probe else self.recorded.took)[index, self.slot]

    def reply(self, message):
        if message.metadata.message_type == wire.REGISTER:
            return self.register(message)
        key = message.content[wire.REQUEST]["round"], self.slot
        if message.metadata.message_type == wire.PROBE:
            return attach(RecordDict(), self.recorded.probes.get(key, {}))
        if key not in self.recorded.said or self.recorded.said[key] is None:  # late there: never trained at all
            return Error(APP_RAISED, "broken")
        weights, n, steps, signals = self.recorded.said[key]
        metrics = MetricRecord({"num-examples": n, "num-steps": steps})
        return attach(RecordDict({"arrays": as_record({"w": weights}), "metrics": metrics}), signals)


def attach(content, signals):
    scalars = {n: float(v) for n, v in signals.items() if np.ndim(v) == 0}
    vectors = {n: Array(np.asarray(v)) for n, v in signals.items() if np.ndim(v)}
    content[wire.SIGNALS], content[wire.VECTORS] = MetricRecord(scalars), ArrayRecord(vectors)
    return content


class Stage(FakeGrid):
    """Shows each round who was there in the simulator; what is still under way arrives between the rounds."""

    def __init__(self, recorded: Recorded) -> None:
        super().__init__([Actor(s, recorded) for s in range(POPULATION)])
        self.recorded, self.strategy = recorded, None
        self.now = 0.0

    def get_node_ids(self):
        self.queue = [(self.now, number, reply) for _, number, reply in self.queue]
        rounds = self.strategy._rounds
        if rounds is None or len(rounds.clients.roster) < POPULATION:
            return list(self.clients)
        return [1001 + int(s) for s in self.recorded.there.get(rounds.session.index, [])]


def flower(recorded: Recorded, selector: str, state_dir, monkeypatch, over_select: float):
    """The same run on Flower: our method fedavg, the simulator's score, its estimates of speed."""
    grid, sim = Stage(recorded), recorded.sim
    estimates = np.asarray(sim.federation.profiles.get("expected_seconds", np.ones(POPULATION)))
    known = Clients.profiles

    def profiles(self, names, deadline):
        out = known(self, [n for n in names if n != "expected_seconds"], deadline)
        return {**out, "expected_seconds": estimates} if "expected_seconds" in names else out

    monkeypatch.setattr(Clients, "profiles", profiles)
    layout = ModelLayout.of(as_record({"w": initial(sim)}))

    def score(server_round, arrays):
        model = layout.model({k: a.numpy() for k, a in arrays.items()})
        value = sim.task.evaluate(model, "validation").get("accuracy", math.nan)
        return MetricRecord({"accuracy": float(value)}) if math.isfinite(value) else None

    strategy = CohortStrategy(
        selector=selector,
        method="fedavg",
        cohort_size=SIZE,
        over_select=over_select,
        deadline=recorded.deadline,
        min_available=POPULATION,
        keep_updates=True,
        seed=SEED,
        state_dir=state_dir,
        last_layer=("w",),
        **timing(grid),
    )
    grid.strategy = strategy
    return strategy, grid, score


def initial(sim):
    from fedcohort.core.rng import generator

    return sim.task.initial(generator(SEED, "model")).params


def journal_of(folder):
    from fedcohort.storage.journal import Journal

    journal = Journal.read(folder / "journal.db")
    try:
        told = [r.unpack()[0] for r in journal.records("tell")]
        return [np.sort(r.unpack()[0]["clients"]).tolist() for r in journal.records("ask")], told
    finally:
        journal.close()


CASES = [pytest.param(1.0, True, id="faults"), pytest.param(1.5, False, id="over-selection")]


@pytest.mark.parametrize(("over_select", "faults"), CASES)
@pytest.mark.parametrize("selector", SELECTORS)
def test_simulator_flower_and_replay_choose_the_same(selector, over_select, faults, tmp_path, monkeypatch):
    recorded = Recorded(selector, over_select=over_select, faults=faults)
    strategy, grid, score = flower(recorded, selector, tmp_path, monkeypatch, over_select)
    result = strategy.start(grid, as_record({"w": initial(recorded.sim)}), num_rounds=ROUNDS, evaluate_fn=score)
    asked, told = journal_of(tmp_path)
    assert asked == [sorted(c) for c in recorded.cohorts]
    np.testing.assert_array_equal(result.arrays.to_numpy_ndarrays()[0], recorded.sim.model.params)
    outcomes = np.concatenate([t["outcome"] for t in told])
    if faults:
        assert len(set(outcomes.tolist())) >= 2  # not all went well
    rows = recorded.sim.history.rows
    assert [int(r["ok"]) for r in rows] == [int((t["outcome"] == Outcome.OK).sum()) for t in told]
    assert [c.tolist() for c in replay(tmp_path)] == [sorted(c) for c in recorded.cohorts]


@pytest.mark.parametrize("selector", SELECTORS)
def test_flowers_own_loop_asks_the_same(selector, tmp_path, monkeypatch):
    """Strategy.start of flwr itself. It times the round, not each reply, so here everybody takes the same time."""
    recorded = Recorded(selector, over_select=1.0, faults=False, alike=True)
    strategy, grid, score = flower(recorded, selector, tmp_path, monkeypatch, 1.0)
    strategy.evaluate_fn = score  # Flower's loop keeps its own to itself
    Strategy.start(strategy, grid, as_record({"w": initial(recorded.sim)}), num_rounds=ROUNDS, timeout=1e5)
    asked, _ = journal_of(tmp_path)
    assert asked == [sorted(c) for c in recorded.cohorts]


def test_a_model_keeps_its_bits_on_the_way_to_flower_and_back():
    arrays = {
        "conv": np.arange(6, dtype=np.float32).reshape(1, 2, 3),
        "n": np.array([3, 4]),
        "bn.running_mean": np.ones(2),
    }
    layout = ModelLayout.of(as_record(arrays))
    model = layout.model(arrays)
    assert isinstance(model, Model)
    assert (model.params.size, model.buffers.size, model.counters.size) == (6, 2, 2)
    for key, value in layout.named(model).items():
        np.testing.assert_array_equal(value, arrays[key])
        assert value.dtype == arrays[key].dtype
