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
from fedcohort.experiment.runs import build
from fedcohort.flower import CohortStrategy, wire
from fedcohort.flower.model_layout import ModelLayout
from fedcohort.flower.server.clients import Clients
from fedcohort.flower.server.recorded_run import replay_folder
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

    def __init__(self, selector: str, *, over_select: float = 1.0, faults: bool, alike=False, buffer_size=0) -> None:
        config = RunConfig(
            selector=selector,
            task="quadratic",
            world=f"dirichlet-0.1-v1(clients={POPULATION})",
            rounds=ROUNDS,
            cohort_size=SIZE,
            seed=SEED,
            over_select=over_select,
            buffer_size=buffer_size,
            **({"deadline": 40.0} if faults and not buffer_size else {}),
        )
        self.sim = build(config)
        self.alike = alike  # everybody takes the same time
        self.faults, self.deadline = faults, min(config.deadline, 1e6)
        self.took, self.said, self.probes, self.there = {}, {}, {}, {}
        self.mode, self.probing = "train", {}
        self._world(), self._task(), self._arrived(), self._probe()
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

        world = Proxy(
            world, seconds=timed, available=available, dropped=lambda i, c, probe=False: np.zeros(c.size, bool)
        )
        self.sim.world = self.sim.federation.world = world

    def _task(self) -> None:
        train = self.sim.task.train

        def failing(model, clients, plan):
            trained = train(model, clients, plan)
            failed = np.array([self.faults and (int(c) + plan.round) % 5 == 0 for c in clients], bool)
            reasons = {int(c): "broken" for c in clients[failed]}
            return replace(trained, failed=failed, reasons=reasons)

        self.sim.task = self.sim.federation.task = Proxy(self.sim.task, train=failing)

    def _arrived(self) -> None:
        arrived = self.sim.federation._arrived

        def over_the_wire(sent, rows):
            there, index, before = arrived(sent, rows), sent.work.index, sent.work.model.params
            updates = there.updates
            weights = before + updates.delta
            bad = np.array([self.faults and (int(c) + index) % 4 == 3 for c in updates.clients], bool)
            weights[bad] = np.nan
            self.said.update({(index, int(c)): None for c in there.clients})  # unless it replied
            for row, client in enumerate(updates.clients):
                signals = {n: v[row] for n, v in there.signals.items()}
                n, steps = int(updates.weight[row]), int(updates.steps[row])
                self.said[index, int(client)] = weights[row], n, steps, signals
            return replace(there, updates=replace(updates, delta=weights - before))

        self.sim.federation._arrived = over_the_wire

    def _probe(self) -> None:
        probe = self.sim.federation.probe

        def answered(index, model, clients, names):
            self.mode = "probe"
            answers = probe(index, model, clients, names)
            self.mode = "train"
            for row, client in enumerate(answers.clients):
                self.probes[index, int(client)] = {n: v[row] for n, v in answers.signals.columns().items()}
            return answers

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
        if not self.recorded.sim.settings.buffer_size:
            self.queue = [(self.now, number, reply) for _, number, reply in self.queue]
        engine = self.strategy._engine
        if engine is None or engine.backend.population < POPULATION:
            return list(self.clients)
        return [1001 + int(s) for s in self.recorded.there.get(engine.session.index, [])]


def flower(recorded: Recorded, selector: str, state_dir, monkeypatch, over_select: float):
    """The same run on Flower: our method fedavg, the simulator's score, its estimates of speed."""
    grid, sim = Stage(recorded), recorded.sim
    estimates = np.asarray(sim.federation.columns.get("expected_seconds", np.ones(POPULATION)))
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
        buffer_size=sim.settings.buffer_size,
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
    assert [sorted(c.tolist()) for c in replay_folder(tmp_path)] == [sorted(c) for c in recorded.cohorts]


@pytest.mark.parametrize("selector", SELECTORS)
def test_without_rounds_they_choose_the_same_too(selector, tmp_path, monkeypatch):
    """Four clients are always out, the model moves at every second update; some fail or are refused.

    Nobody is late: a late client can be asked at once in the simulator, on Flower it owes a sign of life first.
    """
    recorded = Recorded(selector, faults=True, buffer_size=2)
    strategy, grid, score = flower(recorded, selector, tmp_path, monkeypatch, 1.0)
    result = strategy.start(grid, as_record({"w": initial(recorded.sim)}), num_rounds=ROUNDS, evaluate_fn=score)
    _, told = journal_of(tmp_path)
    assert [t["clients"].tolist() for t in told] == [sorted(c) for c in recorded.cohorts]  # who ended when
    np.testing.assert_array_equal(result.arrays.to_numpy_ndarrays()[0], recorded.sim.model.params)
    rows, ours = recorded.sim.history.rows, strategy.history
    for name in ("asked", "ok", "failed", "rejected", "late", "version", "in_flight"):
        assert [r[name] for r in ours] == [r[name] for r in rows], name
    np.testing.assert_allclose([r["clock"] for r in ours], [r["clock"] for r in rows])
    assert len(replay_folder(tmp_path)) == ROUNDS


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
