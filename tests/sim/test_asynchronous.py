"""Runs without rounds: a timeline worked out by hand, every client told once, resume, verify, every selector."""

from __future__ import annotations

import numpy as np
import pytest

import fedcohort as fc
from fedcohort.errors import BadParameter, ContractError
from fedcohort.experiment.config import RunConfig
from fedcohort.experiment.runs import build, resume, run
from fedcohort.experiment.verification import verify
from fedcohort.methods._parts.local_solver import learning_rates
from fedcohort.methods.fedbuff import FedBuff
from fedcohort.registry import lookup as registry
from fedcohort.report.run_detail import reasons
from fedcohort.report.views import WAITING, client, cohort_map
from fedcohort.rounds.session import Session
from fedcohort.selectors.uniform import Uniform
from fedcohort.sim.simulation import RunSettings, Simulation
from fedcohort.types import Cohort, Outcome, RoundResult

CONFIG = RunConfig(
    selector="oort", method="fedbuff(size=3)", task="digits-softmax", rounds=12, cohort_size=8, seed=4, buffer_size=3
)
SECONDS = np.array([1.0, 2.0, 5.0, 4.0])  # of clients 0 to 3, whatever the step


class Lowest(Uniform):
    """Chooses the lowest slots that are there, and keeps what it hears."""

    needs = frozenset({"train_loss"})

    def __init__(self):
        self.seen = []

    def select(self, rnd, rng):
        return Cohort(rnd.available[: rnd.size])

    def observe(self, result):
        self.seen.append(result)


class Watching(FedBuff):
    """FedBuff that keeps who came and how old it was."""

    def __init__(self, **keys):
        super().__init__(**keys)
        self.came = []

    def aggregate(self, model, updates, context):
        ages = updates.extras.get("staleness", np.empty(0))
        self.came.append(dict(zip(updates.clients.tolist(), ages.tolist(), strict=True)))
        return super().aggregate(model, updates, context)


class Timed:
    """A world whose clients take SECONDS and of which some drop out."""

    def __init__(self, world, lost=()):
        self.world, self.lost = world, np.asarray(lost, np.int64)

    def __getattr__(self, name):
        return getattr(self.world, name)

    def available(self, index, clock):
        return np.arange(4)

    def seconds(self, index, clients, work):
        return SECONDS[clients]

    def dropped(self, index, clients):
        return np.isin(clients, self.lost)


def timed(settings, *, lost=(), method=None):
    base = build(RunConfig(task="digits-softmax", world="iid-v1(clients=4)", rounds=1, cohort_size=1))
    return Simulation(Lowest(), method or Watching(size=2), Timed(base.world, lost), base.task, settings)


def test_a_timeline_worked_out_by_hand():
    """Three out, two gathered. Clients 0 to 3 take 1, 2, 5 and 4 seconds; the model moves at every second update.

    time 0: 0, 1, 2 leave (version 0). 1: 0 is in. 2: 1 is in -> step 0, version 1.
    time 2: 0, 1 leave (version 1). 3: 0 is in. 4: 1 is in -> step 1, ages 0 and 0, version 2.
    time 4: 0, 1 leave (version 2). 5: 0 and 2 are in, 2 is two versions old -> step 2, version 3.
    time 5: 0, 2 leave (version 3), 1 is out until 6. 6: 0 and 1 are in, 1 is one version old -> step 3.
    """
    simulation = timed(RunSettings(rounds=4, cohort_size=3, buffer_size=2))
    history = simulation.run()
    assert history.clock.tolist() == [2.0, 4.0, 5.0, 6.0]
    assert simulation.method.came == [{0: 0, 1: 0}, {0: 0, 1: 0}, {0: 0, 2: 2}, {0: 0, 1: 1}]
    assert history.column("in_flight").tolist() == [1, 1, 1, 1]
    assert history.column("version").tolist() == [1, 2, 3, 4]
    assert history.column("staleness").tolist() == [0, 0, 1, 0.5]
    durations = [
        dict(zip(r.clients.tolist(), r.duration.tolist(), strict=True)) for r in simulation.session.selector.seen
    ]
    assert durations == [{0: 1, 1: 2}, {0: 1, 1: 2}, {0: 1, 2: 5}, {0: 1, 1: 2}]
    for result in simulation.session.selector.seen:
        assert np.isfinite(result.signals["train_loss"]).all()


def test_old_updates_weigh_less():
    """Step 2 above: client 0 is fresh, client 2 two versions old and weighs 1 / sqrt(3)."""
    changes = []

    class Keeping(FedBuff):
        def aggregate(self, model, updates, context):
            done = super().aggregate(model, updates, context)
            changes.append((updates.delta, done.model.params - model.params))
            return done

    timed(RunSettings(rounds=3, cohort_size=3, buffer_size=2), method=Keeping(size=2)).run()
    delta, change = changes[2]
    np.testing.assert_allclose(change, (delta[0] + delta[1] / np.sqrt(3)) / 2, atol=1e-7)


def test_a_method_is_told_the_rates_that_clients_trained_with():
    """The timeline above with a rate that falls by half at every step: client 2 has that of step 0 in step 2."""
    rates = []

    class Rated(FedBuff):
        def aggregate(self, model, updates, context):
            rates.append((learning_rates(context.plan, updates, context) / rate).tolist())
            return super().aggregate(model, updates, context)

    simulation = timed(RunSettings(rounds=4, cohort_size=3, buffer_size=2, lr_decay=0.5), method=Rated(size=2))
    rate = simulation.task.plan().lr
    simulation.run()
    assert rates == [[1.0, 1.0], [0.5, 0.5], [0.25, 1.0], [0.125, 0.25]]
    rates.clear()
    slow = timed(RunSettings(rounds=2, cohort_size=4, buffer_size=2, lr_decay=0.5), method=Rated(size=2))
    slow.world.seconds = lambda index, clients, work: np.array([1.0, 1.0, 1.5, 1.5])[clients]
    slow.run()
    assert rates == [[1.0, 1.0], [1.0, 1.0]]  # all of step 0, in step 1


def test_updates_are_made_from_the_model_that_was_sent():
    """Client 2 leaves with the first model and lands three steps later: its update is that of round 0."""
    simulation = timed(RunSettings(rounds=3, cohort_size=3, buffer_size=2))
    first = simulation.model
    alone = simulation.task.train(first, np.array([2]), simulation.engine._prepared(0, Cohort(np.array([2])))[0])
    landed = []

    class Keeping(FedBuff):
        def aggregate(self, model, updates, context):
            landed.append(updates)
            return super().aggregate(model, updates, context)

    timed(RunSettings(rounds=3, cohort_size=3, buffer_size=2), method=Keeping(size=2)).run()
    np.testing.assert_array_equal(landed[2].delta[1], alone.updates.delta[0])


def test_weights_are_those_of_the_model_that_was_sent():
    """A selector that reads local weights gets delta + the model the client had, not the server's of now."""
    simulation = timed(RunSettings(rounds=4, cohort_size=3, buffer_size=2))
    selector = simulation.session.selector
    type(selector).needs = frozenset({"weights", "delta"})
    sent, stale = {}, 0

    def keep(work, dispatch=simulation.federation.dispatch):
        sent.update({int(c): work.model.params for c in work.cohort.clients})
        dispatch(work)

    simulation.federation.dispatch = keep
    try:
        for _ in simulation.steps():
            seen = selector.seen[-1]
            for row, client in enumerate(seen.clients.tolist()):
                base = seen.signals["weights"][row] - seen.signals["delta"][row]
                np.testing.assert_allclose(base, sent[client], atol=1e-6)
                stale += not np.allclose(sent[client], simulation.model.params, atol=1e-9)
    finally:
        type(selector).needs = frozenset()
    assert stale >= 2


def test_who_drops_out_is_told_and_its_place_is_given_away():
    simulation = timed(RunSettings(rounds=4, cohort_size=3, buffer_size=2), lost=[0])
    simulation.run()
    for result in simulation.session.selector.seen:
        assert (result.outcome[result.clients == 0] == Outcome.FAILED).all()
    told = np.concatenate([r.clients for r in simulation.session.selector.seen])
    assert (told == 0).sum() >= 2
    assert all(0 not in came for came in simulation.method.came)


def test_a_place_is_given_away_while_updates_wait():
    """Two out, two gathered; client 0 drops out after a second, whenever it is asked.

    time 0: 0, 1 leave. 1: 0 is lost, and with one good update under way nothing can be gathered -> step 0.
    time 1: 0 leaves. 2: 0 is lost, 1 is in and waits -> step 1. time 2: 0, 2 leave; 7: 1 and 2 are gathered -> step 2.
    """
    simulation = timed(RunSettings(rounds=3, cohort_size=2, buffer_size=2), lost=[0])
    history = simulation.run()
    assert history.clock.tolist() == [1.0, 2.0, 7.0]
    assert [r.clients.tolist() for r in simulation.session.selector.seen] == [[0], [0], [0, 1, 2]]
    assert simulation.method.came == [{}, {}, {1: 0, 2: 0}]
    assert "abandoned" not in history.rows[0]


class Probing(Lowest):
    """Sends out 0 to 3, then 1 and 2, and probes before the third step."""

    needs = frozenset({"train_loss", "probe_loss"})
    wanted = ((0, 1, 2, 3), (1, 2), (2,), (1,))

    def probe(self, rnd, rng):
        return rnd.available[:2] if rnd.index == 2 else rnd.available[:0]

    def select(self, rnd, rng):
        return Cohort(np.intersect1d(self.wanted[rnd.index], rnd.available))


class SlowToProbe(Timed):
    """A probe takes ten seconds; how long a client trains depends on the step."""

    table = ({0: 20.0, 1: 3.0, 2: 3.5, 3: 5.0}, {1: 9.0, 2: 2.0}, {2: 8.0}, {1: 7.0})

    def seconds(self, index, clients, work):
        probes = work.passes.size and work.passes[0] < 1
        return np.array([10.0 if probes else self.table[index][int(c)] for c in clients])

    def dropped(self, index, clients, *, probe=False):
        return np.zeros(clients.size, np.bool_)


def test_a_reply_that_comes_during_a_probe_is_in_time_and_counted_once():
    """Client 1 leaves at 3.5 and replies at 12.5. The probe ends at 15.5, when 0 and 1 have had their ten seconds."""
    base = build(RunConfig(task="digits-softmax", world="iid-v1(clients=4)", rounds=1, cohort_size=1))
    settings = RunSettings(rounds=4, cohort_size=4, buffer_size=2, deadline=10.0)
    simulation = Simulation(Probing(), Watching(size=2), SlowToProbe(base.world), base.task, settings)
    history = simulation.run()
    seen = [
        {c: (Outcome(o).name, s) for c, o, s in zip(r.clients.tolist(), r.outcome, r.duration.tolist(), strict=True)}
        for r in simulation.session.selector.seen
    ]
    assert seen == [
        {1: ("OK", 3.0), 2: ("OK", 3.5)},
        {2: ("OK", 2.0), 3: ("OK", 5.0)},
        {0: ("LATE", 10.0), 1: ("OK", 9.0), 2: ("OK", 8.0)},
        {1: ("OK", 7.0)},
    ]
    assert history.clock.tolist() == [3.5, 5.5, 23.5, 30.5]
    assert not sum(simulation.engine.refused.values())


def test_nobody_is_under_way_who_was_given_up():
    federation = timed(RunSettings(rounds=4, cohort_size=3, buffer_size=2)).federation
    federation.flight = {"client": np.arange(3), "arrival": np.ones(3)}
    federation.give_up(np.array([1]), timed_out=True)
    assert federation.under_way().tolist() == [0, 2]


def test_one_that_takes_longer_than_the_deadline_is_late():
    simulation = timed(RunSettings(rounds=4, cohort_size=3, buffer_size=2, deadline=4.5))
    simulation.run()
    result = simulation.session.selector.seen[2]
    at = result.clients == 2
    assert (result.outcome[at], result.duration[at]) == (Outcome.LATE, 4.5)
    assert all(2 not in came for came in simulation.method.came)


def test_if_all_fail_time_goes_on():
    simulation = timed(RunSettings(rounds=3, cohort_size=3, buffer_size=2), lost=[0, 1, 2, 3])
    before = simulation.model.params.copy()
    history = simulation.run()
    assert (np.diff(history.clock) > 0).all()
    np.testing.assert_array_equal(simulation.model.params, before)


def test_everybody_out_at_once_is_a_round():
    """buffer_size = size with equal speeds: the cohorts and the model of a synchronous run."""
    keys = {
        **CONFIG.to_dict(),
        "method": "fedavg",
        "selector": "uniform",
        "world": "iid-v1(clients=20)",
        "rounds": 5,
    }
    rounds = build(RunConfig(**{**keys, "buffer_size": 0}))
    steps = build(RunConfig(**{**keys, "buffer_size": 8}))
    before, after = rounds.run(), steps.run()
    for a, b in zip(before.cohorts, after.cohorts, strict=True):
        np.testing.assert_array_equal(np.sort(a), np.sort(b))
    np.testing.assert_array_equal(rounds.model.params, steps.model.params)
    np.testing.assert_allclose(before.clock, after.clock)


@pytest.mark.parametrize("selector", registry.names("selector"))
def test_every_selector_runs_and_every_client_is_told_once(selector):
    simulation = build(RunConfig(**{**CONFIG.to_dict(), "selector": selector, "max_privacy": "P3", "rounds": 8}))
    asked, told = [], []
    ask, tell = simulation.session.ask, simulation.session.tell

    def listened(*values, **keys):
        cohort = ask(*values, **keys)
        asked.append(cohort.clients)
        return cohort

    def heard(result, *values):
        told.append(result.clients)
        tell(result, *values)

    simulation.session.ask, simulation.session.tell = listened, heard
    history = simulation.run()
    out = set()
    for leaving, ended in zip(asked, told, strict=True):
        assert not out & set(leaving.tolist())
        out |= set(leaving.tolist())
        assert len(out) <= 8 + 2  # two updates may wait for a third
        assert set(ended.tolist()) <= out
        out -= set(ended.tolist())
    assert np.isfinite(simulation.model.params).all()
    assert history.column("ok").sum() >= 8


@pytest.mark.parametrize("method", registry.names("method"))
def test_every_method_runs_or_is_refused_by_name(method):
    config = RunConfig(**{**CONFIG.to_dict(), "method": method, "selector": "uniform", "rounds": 4})
    if method == "scaffold":
        with pytest.raises(BadParameter, match=r"method scaffold with buffer_size.*option='I'"):
            build(config)
        config = RunConfig(**{**config.to_dict(), "method": "scaffold(option='I')"})
    simulation = build(config)
    simulation.run()
    assert np.isfinite(simulation.model.params).all()


@pytest.mark.parametrize(
    ("selector", "method"), [("oort", None), ("hetero-select", None), ("uniform", None), ("uniform", "fedca")]
)
def test_a_stopped_run_goes_on_to_the_same_bytes_and_verifies(tmp_path, selector, method):
    keys = {"selector": selector, "method": method or CONFIG.method, "world": "mixed-v1"}
    config = RunConfig(**{**CONFIG.to_dict(), **keys})
    whole = run(config, tmp_path / "whole").history

    class Stop(Exception):
        pass

    def stop(row):
        if row["round"] == 6:
            raise Stop

    with pytest.raises(Stop):
        run(config, tmp_path / "stopped", stop)
    again = resume(tmp_path / "stopped").history
    assert again.rows == whole.rows
    metrics = [(tmp_path / name / "metrics.jsonl").read_bytes() for name in ("whole", "stopped")]
    assert metrics[0] == metrics[1]
    assert verify(tmp_path / "stopped").rounds == 12


def test_pictures_show_an_outcome_where_its_client_was_asked(tmp_path):
    """The map, a client's page and the report put what was told later beside the round that asked."""
    history = run(CONFIG, tmp_path / "r").history
    found = cohort_map(tmp_path / "r")
    asked = [[found["clients"][row] for row in rows] for rows in found["asked"]]
    digits = "".join(found["outcomes"])
    told = sum(cohort.size for cohort in history.cohorts)
    assert sum(map(len, asked)) == len(digits) == told + digits.count(str(WAITING))
    assert digits.count(str(WAITING)) == history.rows[-1]["in_flight"]
    assert digits.count("0") == history.column("ok").sum()
    slot = asked[0][0]
    assert [v["round"] for v in client(tmp_path / "r", slot)["visits"]] == [t for t, c in enumerate(asked) if slot in c]
    why, _ = reasons(tmp_path / "r", found, 10**6)
    seconds = [s for row in why["values"]["seconds"] for s in row]
    assert sum(s is not None for s in seconds) == told


def test_a_session_refuses_rows_of_strangers_and_rows_told_twice():
    session = Session(Lowest(), cohort_size=2, seed=0, asynchronous=True)
    assert session.ask(np.arange(4)).clients.tolist() == [0, 1]

    def tell(*clients):
        rows = np.array(clients, np.int64)
        session.tell(RoundResult(session.index, rows, np.zeros(rows.size, np.int8), np.ones(rows.size)))

    with pytest.raises(ContractError, match="not dispatched or was told before"):
        tell(3)
    tell(1)
    assert session.ask(np.arange(4), size=1).clients.tolist() == [1]
    tell()
    assert session.ask(np.arange(4), size=2).clients.tolist() == [2, 3]
    with pytest.raises(ContractError, match="told before"):
        tell(0, 0)
    tell(0, 1, 2, 3)


@pytest.mark.parametrize("key", ["over_select", "min_replies", "back_off"])
def test_what_has_no_meaning_without_rounds_is_refused(key):
    with pytest.raises(BadParameter, match=f"{key} = .* with buffer_size"):
        build(RunConfig(**{**CONFIG.to_dict(), key: 2}))


def test_gather_is_between_nothing_and_all():
    with pytest.raises(BadParameter, match="buffer_size = 9"):
        build(RunConfig(**{**CONFIG.to_dict(), "buffer_size": 9}))


def test_one_line_is_enough():
    history = fc.simulate(
        "uniform", method="fedbuff(size=2)", task="digits-softmax", rounds=3, cohort_size=6, buffer_size=2
    )
    assert history.column("version").tolist() == [1, 2, 3]


def test_an_uploaded_model_is_judged_against_the_one_it_began_with():
    """FLASH's reward: an update of an old model, added to the model of now, would be a model that nobody has."""
    gains: dict[frozenset[str], list[float]] = {}

    class Listener(Uniform):
        def observe(self, result):
            gains.setdefault(self.needs, []).extend(result.signals["model_gain"].tolist())

    class Weigher(Listener):
        needs = frozenset({"model_gain", "weights"})

    Listener.needs = frozenset({"model_gain"})
    for selector in (Listener(), Weigher()):
        fc.simulate(selector, task="digits-softmax", method="fedbuff(size=2)", cohort_size=6, buffer_size=2, rounds=12)
    assert len(gains[Listener.needs]) > 20
    np.testing.assert_array_equal(gains[Listener.needs], gains[Weigher.needs])


class Weigher(Lowest):
    needs = frozenset({"weights"})


class Asked:
    """A server evaluator that keeps the models which it was asked about."""

    def __init__(self, inner):
        self.inner, self.models = inner, set()

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def logits(self, params, split, *buffers):
        self.models |= {row.tobytes() for row in np.asarray(params, np.float32)}
        return self.inner.logits(params, split, *buffers)


@pytest.mark.parametrize(
    "method",
    ["fedca", "feddf", "feddf(drop_worst=True)", "rhfl", "cmfl(inner='fedca')", "feddf(inner='fedbuff(size=4)')"],
)
def test_a_method_looks_at_the_models_that_clients_have(method):
    """In the timeline above clients 2 and 1 land in steps 2 and 3 with updates of older models than the server's."""

    def made(selector):
        base = build(
            RunConfig(task="digits-softmax(unlabelled=0.1)", world="iid-v1(clients=4)", rounds=1, cohort_size=1)
        )
        asked = Asked(base.task.server_evaluator())
        base.task.server_evaluator = lambda: asked
        settings = RunSettings(rounds=4, cohort_size=3, buffer_size=2)
        Simulation(selector, registry.make_method(method), Timed(base.world), base.task, settings).run()
        return asked.models

    weigher = Weigher()
    made(weigher)
    true = [row for result in weigher.seen for row in np.asarray(result.signals["weights"], np.float32)]
    assert len(true) == 8
    assert {row.tobytes() for row in true} <= made(Lowest())
