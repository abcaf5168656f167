"""The loop: outcomes, clock, traffic, directives, resume, and that two selectors meet the same random draws."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import numpy as np
import pytest

import fedcohort as fc
from fedcohort.errors import BadParameter, MissingSignal
from fedcohort.experiment.config import RunConfig
from fedcohort.experiment.runs import build
from fedcohort.methods.fedavg import FedAvg
from fedcohort.protocols import Aggregated
from fedcohort.sim.run_settings import RunSettings
from fedcohort.sim.simulation import Simulation
from fedcohort.sim.uploads import drop_tensors
from fedcohort.types import Cohort, Outcome, Updates

CONFIG = RunConfig(task="digits-softmax", rounds=6, cohort_size=6, seed=3)


def change(**keys):
    return RunConfig(**{**CONFIG.to_dict(), **keys})


class Fixed:
    """Chooses the same clients every round, with these directives."""

    needs = frozenset({"train_loss", "delta_norm"})

    def __init__(self, clients, **directives):
        self.clients, self.directives, self.seen = np.asarray(clients), directives, []

    def select(self, rnd, rng):
        at = np.isin(self.clients, rnd.available)
        return Cohort(self.clients[at], directives={k: np.asarray(v)[at] for k, v in self.directives.items()})

    def observe(self, result):
        self.seen.append(result)

    def state_dict(self):
        return {}

    def load_state_dict(self, arrays):
        pass


def test_every_dispatched_client_has_one_outcome_and_rows_add_up():
    history = build(change(rounds=15)).run()
    for row, cohort in zip(history.rows, history.cohorts, strict=True):
        outcomes = sum(row[o.name.lower()] for o in Outcome)
        assert outcomes == row["asked"] == cohort.size
    assert history.participation().sum() == sum(r["asked"] for r in history.rows)


def test_the_clock_is_the_sum_of_rounds():
    history = build(change(rounds=10)).run()
    np.testing.assert_allclose(np.cumsum(history.column("seconds")), history.clock)


def test_a_deadline_makes_stragglers_late_and_bounds_the_round():
    free = build(change(rounds=10)).run()
    deadline = float(np.median(free.column("seconds"))) / 2
    tight = build(change(rounds=10, deadline=deadline)).run()
    assert tight.column("late").sum() > 0
    assert (tight.column("seconds") <= deadline + 1e-9).all()


def test_nobody_in_time_leaves_the_model_alone():
    simulation = build(change(rounds=3, deadline=1e-9))
    before = simulation.model.params.copy()
    history = simulation.run()
    assert history.column("ok").sum() == 0
    np.testing.assert_array_equal(simulation.model.params, before)


def test_over_selection_closes_at_the_wanted_size():
    history = build(change(rounds=8, over_select=1.5)).run()
    assert (history.column("asked") == 9).all()
    assert (history.column("ok") <= 6).all()
    assert (history.column("late") >= 1).any()


@pytest.mark.parametrize(
    ("keys", "ends", "outcomes"),
    [
        ({"close_after": 2}, 2.0, "OK OK LATE FAILED"),  # at the second reply; that client 3 is lost is known here
        ({}, 4.0, "OK OK OK FAILED"),  # a fourth reply cannot come: the loss is noticed at 4 s
        ({"deadline": 2.5}, 2.5, "OK OK LATE FAILED"),
        ({"deadline": 3.0}, 3.0, "OK OK OK FAILED"),  # exactly at the deadline is in time
    ],
)
def test_closing_rules(keys, ends, outcomes):
    """Four clients reply after 1, 2 and 3 s; the fourth drops out after 4 s."""
    base = build(change(rounds=1, world="iid-v1(clients=4)", cohort_size=4))
    settings = RunSettings(rounds=1, cohort_size=4, **keys)
    simulation = Simulation(Fixed([0, 1, 2, 3]), base.method, Timed(base.world), base.task, settings)
    row = next(iter(simulation.steps()))
    assert (row["seconds"], row["clock"]) == (ends, ends)
    seen = simulation.session.selector.seen[0]
    assert [Outcome(o).name for o in seen.outcome] == outcomes.split()
    assert seen.duration.tolist() == [min(s, ends) for s in (1.0, 2.0, 3.0, 4.0)]


def test_a_rejected_reply_does_not_close_a_round():
    """Two replies are wanted of three; the second is refused, so the round waits for the third."""
    base = build(change(rounds=1, world="iid-v1(clients=4)", cohort_size=4))
    settings = RunSettings(rounds=1, cohort_size=2, over_select=1.5)
    world = Timed(base.world, broken=[1])
    simulation = Simulation(Fixed([0, 1, 2]), base.method, world, base.task, settings)
    row = next(iter(simulation.steps()))
    assert (row["seconds"], row["ok"], row["rejected"], row["late"]) == (3.0, 2.0, 1.0, 0.0)


class Timed:
    """A world whose client i replies after i + 1 seconds; client 3 drops out, `broken` ones send NaN."""

    def __init__(self, world, broken=()):
        self._world, self.broken = world, list(broken)

    def __getattr__(self, name):
        return getattr(self._world, name)

    def seconds(self, index, clients, work):
        return clients + 1.0

    def dropped(self, index, clients):
        return clients == 3

    def tamper(self, index, updates, signals):
        delta = updates.delta.copy()
        delta[np.isin(updates.clients, self.broken)] = np.nan
        return replace(updates, delta=delta), signals


def test_two_selectors_meet_the_same_draws():
    one, two = build(change(selector="uniform")), build(change(selector="oort"))
    assert one.world.digest == two.world.digest
    a, b = np.array([3, 9, 20]), np.array([1, 9, 30, 40])
    work = [s.federation._work(c, s.model, 1.0, 10.0, 10.0) for s, c in ((one, a), (two, b))]
    assert one.world.seconds(4, a, work[0])[1] == two.world.seconds(4, b, work[1])[1]


def test_work_directive_changes_local_epochs_of_that_client_only():
    base = build(change(rounds=1))
    plain = Fixed([0, 1])
    more = Fixed([0, 1], work=[1.0, 3.0])
    deltas = []
    for selector in (plain, more):
        simulation = build(change(rounds=1))
        plan = simulation.federation.plan(0, selector.select(_round(base), None))
        deltas.append(simulation.task.train(simulation.model, np.array([0, 1]), plan).updates)
    assert deltas[1].steps[1] == 3 * deltas[0].steps[1]
    np.testing.assert_allclose(deltas[0].delta[0], deltas[1].delta[0], atol=1e-6)


def _round(simulation):
    from fedcohort.types import Round

    return Round(0, 2, np.arange(simulation.world.population), simulation.world.population)


def test_dropped_tensors_keep_the_weighted_mean_of_those_that_sent():
    """Two tensors of width 2 and 3; who sent what is drawn; the mean over all rows equals the mean over senders."""
    rng = np.random.default_rng(0)
    delta = rng.normal(size=(6, 5)).astype(np.float32)
    weight = np.arange(1.0, 7.0)
    updates = Updates(np.arange(6), delta, weight, np.ones(6, np.int64))
    parts = (slice(0, 2), slice(2, 5))
    dropped = drop_tensors(updates, np.full(6, 0.5), parts, np.random.default_rng(1)).delta
    for part in parts:
        sent = (dropped[:, part] != 0).any(axis=1)
        assert 0 < sent.sum() < 6
        expected = (weight[sent, None] * delta[sent, part]).sum(0) / weight[sent].sum()
        np.testing.assert_allclose((weight[:, None] * dropped[:, part]).sum(0) / weight.sum(), expected, rtol=1e-5)


def test_filtered_clients_are_told_with_their_signals():
    class Aggregator(FedAvg):
        def aggregate(self, model, updates, context):
            kept = np.arange(len(updates)) % 2 == 0
            return Aggregated(model, kept, {"kept": float(kept.sum())})

    selector = Fixed([0, 1, 2, 3, 4, 5])
    history = fc.simulate(
        selector, method=Aggregator(), task="digits-softmax", rounds=2, cohort_size=6, world="iid-v1(clients=20)"
    )
    seen = selector.seen[0]
    filtered = seen.outcome == Outcome.FILTERED
    assert filtered.any()
    assert np.isfinite(seen.signals["train_loss"][filtered]).all()
    assert history.rows[0]["method.kept"] == (seen.outcome == Outcome.OK).sum()


def test_lying_clients_are_rejected_and_change_nothing():
    class Poisoned:
        def __init__(self, world):
            self.world = world

        def __getattr__(self, name):
            return getattr(self.world, name)

        def tamper(self, index, updates, signals):
            delta = updates.delta.copy()
            delta[updates.clients == 2] = np.nan
            return Updates(updates.clients, delta, updates.weight, updates.steps), signals

    from fedcohort.sim.simulation import Simulation

    runs = []
    for clients, poison in (([0, 1, 2, 3], True), ([0, 1, 3], False)):
        base = build(change(world="iid-v1(clients=20)", rounds=1))
        world = Poisoned(base.world) if poison else base.world
        simulation = Simulation(Fixed(clients), FedAvg(), world, base.task, base.settings)
        history = simulation.run()
        runs.append((simulation.model.params, history))
    np.testing.assert_array_equal(runs[0][0], runs[1][0])
    assert runs[0][1].reasons[0] == {2: "update-not-finite"}
    assert runs[0][1].rows[0]["rejected"] == 1


def test_size_beyond_the_population_and_unprovided_signals_are_refused():
    with pytest.raises(BadParameter, match="size = 99"):
        build(change(cohort_size=99))
    selector = Fixed([0])
    selector.needs = frozenset({"label_histogram"})
    with pytest.raises(MissingSignal, match="P3"):
        fc.simulate(selector, rounds=1, cohort_size=1)


def test_same_seed_same_bytes_whatever_the_process_did_before():
    first = build(CONFIG).run()
    build(change(seed=9, selector="oort")).run()
    again = build(CONFIG).run()
    assert first.rows == again.rows
    for a, b in zip(first.cohorts, again.cohorts, strict=True):
        np.testing.assert_array_equal(a, b)


def test_reached_says_never():
    history = build(CONFIG).run()
    assert history.reached(2.0) is None
    at, clock = history.reached(0.0)
    assert (at, clock) == (0, history.clock[0])


@pytest.mark.parametrize("stop", [{}, {"stop_at": 0.1}])
def test_a_run_takes_its_data_with_it(stop):
    """A worker makes many runs, each with a copy of the data: they must not wait for a garbage collection."""
    gc.collect()
    gc.disable()
    try:
        simulation = build(change(rounds=2, **stop))
        simulation.run()
        kept = [weakref.ref(part) for part in (simulation, simulation.world, simulation.task, simulation.engine)]
        del simulation
        assert [part() for part in kept] == [None] * 4
    finally:
        gc.enable()
