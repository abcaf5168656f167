"""One recovery rule, shown on both backends: a process that dies anywhere is followed by one that ends as if nothing
had happened. The same cohorts, the same model, no record lost, and no closed round trained again.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from tests.flower.grid import FakeClient, FakeGrid, as_record, timing

from fedcohort.experiment.config import RunConfig
from fedcohort.experiment.runs import build
from fedcohort.flower import CohortStrategy, wire
from fedcohort.selectors.uniform import Uniform
from fedcohort.storage.journal import Journal
from fedcohort.storage.journal_reader import JournalReader
from fedcohort.storage.run_folder import RunFolder
from fedcohort.storage.snapshots import Snapshots
from fedcohort.types import Cohort

ROUNDS, AT = 6, 3  # the process dies in round AT
PLACES = ("ask", "dispatch", "replies", "aggregate", "evaluate", "checkpoint", "tell", "observe", "told")


class Crash(BaseException):
    pass


class Simulated:
    """A simulated run in a folder."""

    def __init__(self, folder, selector, buffer_size):
        config = RunConfig(
            selector=selector,
            method="fedadam",
            task="digits-softmax",
            world="mixed-v1(clients=12)",
            rounds=ROUNDS,
            cohort_size=4,
            buffer_size=buffer_size,
            engine="numpy",
        )
        self.simulation = build(config)
        path = RunFolder(folder).journal
        exists = path.exists()
        self.journal = Journal.open(path, repair=True) if exists else Journal.create(path, {"version": "0.1.0"})
        self.simulation.attach(self.journal, Snapshots(RunFolder(folder).snapshots))
        self.engine, self.trained = self.simulation.engine, []
        train = self.simulation.task.train
        self.simulation.task.train = lambda model, clients, plan: (
            self.trained.extend((plan.round, int(c)) for c in clients),
            train(model, clients, plan),
        )[1]

    def run(self):
        try:
            self.engine.resume()
            self.simulation.run()
        finally:
            self.journal.close()

    def model(self):
        return self.engine.model.params


class OnFlower:
    """The same kind of run on Flower, on a grid in memory; every process meets other node ids."""

    lives = 0

    def __init__(self, folder, selector, buffer_size):
        OnFlower.lives += 1
        keys = {"provides": ["utility", "samples", "train_loss", "probe_loss"], "train_loss": 1.0, "probe_loss": 2.0}
        clients = [
            FakeClient(f"{i:02}", step=0.1 * (i + 1), seconds=1.0 + i, utility=5.0 - i, **keys) for i in range(8)
        ]
        self.grid = FakeGrid(clients)
        self.grid.clients = {1000 * OnFlower.lives + n: c for n, c in self.grid.clients.items()}
        self.strategy = CohortStrategy(
            method="fedadam",
            selector=selector,
            cohort_size=4,
            buffer_size=buffer_size,
            deadline=60.0,
            state_dir=folder,
            **timing(self.grid),
        )
        first = {"w": np.zeros((2, 3), np.float32), "b": np.zeros(2, np.float32)}
        self.initial, self.clients = as_record(first), clients
        self.strategy._begin(self.grid, self.initial, 1e6)
        self.engine = self.strategy._engine

    def run(self):
        self.strategy._begin = lambda *args: self.engine
        self.strategy.start(self.grid, self.initial, num_rounds=ROUNDS)

    @property
    def trained(self):
        """(round, client) of everybody that was sent work."""
        found = []
        for client in self.clients:
            for message in client.seen:
                if message.metadata.message_type == "train":
                    found.append((message.content[wire.REQUEST]["round"], int(client.name)))
        return found

    def model(self):
        return self.engine.model.params


def dying(monkeypatch, run, where):
    """Let the process die in round AT, at this place."""
    engine, backend = run.engine, run.engine.backend

    def here(*args, **keys):
        return engine.session.index == AT

    def die(owner, name, when=here, after=False):
        inner = getattr(owner, name)

        def wrapped(*args, **keys):
            if when(*args, **keys) and not after:
                raise Crash
            found = inner(*args, **keys)
            if after and when(*args, **keys):
                raise Crash
            return found

        monkeypatch.setattr(owner, name, wrapped)

    if where == "ask":
        die(engine.session, "ask", after=True)  # the cohort is in the journal, nothing was sent
    elif where in ("dispatch", "replies", "evaluate"):
        die(backend, where, after=where == "dispatch")
    elif where == "aggregate":
        die(engine.method, "aggregate")
    elif where == "checkpoint":
        die(engine.recovery, "save")
    elif where == "tell":
        die(engine.session.journal, "append", lambda kind, index, *rest: kind == "tell" and index == AT)
    elif where == "observe":
        die(engine.session.selector, "observe", lambda result: result.index == AT)
    else:
        die(backend, "told", lambda result: result.index == AT)


def records(folder):
    reader = JournalReader(RunFolder(folder).journal)
    asks = [(r.round, r.unpack()[0]["clients"].tolist()) for r in reader.records() if r.kind == "ask"]
    tells = [(r.round, r.unpack()[0]["clients"].tolist()) for r in reader.records() if r.kind == "tell"]
    return asks, tells


@pytest.fixture(scope="module")
def uncut(tmp_path_factory):
    """Runs that nothing happened to, made once each."""

    @cache
    def run(kind, selector, buffer_size):
        folder = tmp_path_factory.mktemp("uncut") / "run"
        whole = kind(folder, selector, buffer_size)
        whole.run()
        return whole, records(folder), whole.model()

    return run


@pytest.mark.parametrize("buffer_size", [0, 2])
@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("kind", [Simulated, OnFlower])
@pytest.mark.parametrize("selector", ["oort", "power-of-choice(d=6)"])
def test_a_killed_process_is_followed_by_one_that_ends_the_same(
    tmp_path, monkeypatch, uncut, selector, kind, where, buffer_size
):
    whole, written, model = uncut(kind, selector, buffer_size)
    cut = kind(tmp_path / "cut", selector, buffer_size)
    dying(monkeypatch, cut, where)
    with pytest.raises(Crash):
        cut.run()
    monkeypatch.undo()
    again = kind(tmp_path / "cut", selector, buffer_size)
    again.run()

    closed = where in ("tell", "observe", "told")  # the end of the round was durable
    first = [client for index, client in again.trained if index <= AT - (not closed)]
    if kind is OnFlower and buffer_size:
        assert sorted(set(first)) == []  # whoever was out is asked again, in the next round
        return
    assert records(tmp_path / "cut") == written
    np.testing.assert_array_equal(again.model(), model)
    assert [r["ok"] for r in again.engine.history.rows] == [r["ok"] for r in whole.engine.history.rows]
    assert first == []  # rounds that were closed are not trained again


def test_an_asynchronous_deployment_asks_whoever_was_out_again(tmp_path, monkeypatch):
    """Four are out; after the crash the same four get the model as it is now, and each is told once."""
    cut = OnFlower(tmp_path, "uniform", 2)
    dying(monkeypatch, cut, "replies")
    with pytest.raises(Crash):
        cut.run()
    monkeypatch.undo()
    out = sorted(cut.engine.session.out.tolist())
    again = OnFlower(tmp_path, "uniform", 2)
    again.run()
    first = min(index for index, _ in again.trained)
    assert sorted(c for index, c in again.trained if index == first) == out
    asks, tells = records(tmp_path)
    asked = [c for _, clients in asks for c in clients]
    told = [c for _, clients in tells for c in clients]
    still_out = again.engine.session.out.tolist()
    assert sorted(asked) == sorted(told + still_out)  # nobody lost, nobody told twice


class Directing(Uniform):
    """Tells every client its own amount of work, and once in a while how often it was drawn."""

    def select(self, rnd, rng):
        clients = super().select(rnd, rng).clients
        directives = {"work": 2.0 + clients} | ({"multiplicity": np.full(clients.size, 2)} if rnd.index == 2 else {})
        return Cohort(clients, directives, inclusion=(1.0 + clients) / 10)


def test_whoever_is_asked_again_gets_the_directives_of_its_own_ask(tmp_path, monkeypatch):
    """Two are out since round 2, two were asked in round 3, where the process died."""
    cut = OnFlower(tmp_path, Directing(), 2)
    dying(monkeypatch, cut, "replies")
    with pytest.raises(Crash):
        cut.run()
    monkeypatch.undo()
    again = OnFlower(tmp_path, Directing(), 2)
    again.engine.open()
    rows = again.engine.out.rows
    np.testing.assert_array_equal(rows["inclusion"], (1.0 + rows["client"]) / 10)
    asked = dict(records(tmp_path)[0])
    twice = np.isin(rows["client"], asked[2]) & ~np.isin(rows["client"], asked[3])
    np.testing.assert_array_equal(rows["multiplicity"], np.where(twice, 2, 1))
    assert twice.any()
    told = {c: m.content[wire.REQUEST] for c in again.clients for m in c.seen if m.metadata.message_type == "train"}
    assert len(told) == 4
    assert all(request["directive.work"] == 2.0 + int(client.name) for client, request in told.items())
    again.strategy._backend.memory.close()


def test_nothing_is_kept_without_files():
    assert build(RunConfig(task="quadratic", rounds=1, cohort_size=2)).engine.resume() == 0


@pytest.mark.parametrize("kind", [Simulated, OnFlower])
def test_more_out_than_places_asks_nobody(tmp_path, kind):
    """After crashes in asynchronous rounds those asked again may be more than the places: the next cohort is empty."""
    run = kind(tmp_path / "run", "uniform", 1)
    run.engine.resume()
    run.engine.round()
    out = int(run.engine.out.running.sum())
    run.engine.policy = replace(run.engine.policy, cohort_size=out - 1)
    cohort = run.engine.open().work.cohort
    assert out > 1
    assert cohort.clients.size == 0
