"""When a round ends and what follows, on both backends: early, complete, at the deadline, abandoned, with nobody there;
what is learned of those cut off; and a crash at every single moment.
"""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import ConfigRecord, Error
from flwr.serverapp.strategy import FedAvg
from tests.flower.grid import FakeClient, FakeGrid, as_record, timing
from tests.stress.faults import (
    MANY,
    Crash,
    FaultyDisk,
    Network,
    OnFlower,
    Script,
    Simulated,
    copied,
    expected_model,
    records,
)
from tests.stress.federation import World, simulated
from tests.stress.rubbish import Liar

from fedcohort.experiment import RunConfig, build, resume, run
from fedcohort.flower import CohortStrategy
from fedcohort.registry.lookup import make_selector
from fedcohort.selectors.uniform import Uniform
from fedcohort.storage.journal import Journal
from fedcohort.storage.snapshots import Snapshots

FIRST = as_record({"w": np.zeros((2, 3), np.float32), "b": np.zeros(2, np.float32)})
POLICY = {"cohort_size": 4, "deadline": 10.0, "over_select": 1.5, "seed": 1}  # six are asked


def on_simulator(seconds, **policy):
    """Simulated clients that take so long; None: they drop out."""

    class Timed(World):
        def seconds(self, index, clients, work):
            return np.array([99.0 if seconds[c] is None else seconds[c] for c in clients])

        def dropped(self, index, clients, *, probe=False):
            return np.array([seconds[c] is None for c in clients])

        def broken(self, index, clients):
            return np.array([self.fail(c) for c in clients], np.bool_)

        def fail(self, client):
            return False

    world = Timed(len(seconds))
    return simulated(Uniform(), world, **{**POLICY, **policy}).engine


class Clocked(FakeGrid):
    """Sleeping takes as long as it should, also when something arrives."""

    def sleep(self, seconds):
        self.now += max(seconds, 1e-9)


class Timed(FakeClient):
    def train(self, message):
        self.seen.clear()
        return Error(2, "training failed") if getattr(self, "fail", False) else super().train(message)

    def delay(self, message):
        return self.seconds if message.metadata.message_type == "train" else 0.0


def on_flower(seconds, inner=None, **policy):
    """Flower clients that take so long; None: they never answer."""
    grid = Clocked([Timed(f"{i:02}", seconds=s) for i, s in enumerate(seconds)])
    maker = {"method": "fedavg"} if inner is None else {}
    keys = {**maker, **POLICY, **policy, **timing(grid), "poll": 0.25}
    strategy = CohortStrategy(inner, selector="uniform", **keys)
    return strategy._begin(grid, FIRST, 1e6)


BOTH = pytest.mark.parametrize("backend", [on_simulator, on_flower])


@BOTH
@pytest.mark.parametrize("close_after", [0, 2])
def test_a_round_closes_when_enough_are_accepted_and_the_rest_is_late(backend, close_after):
    engine = backend([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], close_after=close_after)
    row, enough = engine.round(), close_after or 4
    assert engine.ended == "enough-replies"
    assert (row["asked"], row["ok"], row["late"]) == (6, enough, 6 - enough)
    assert row["seconds"] == pytest.approx(enough)


@BOTH
def test_a_round_closes_when_everybody_has_answered_or_failed(backend):
    engine = backend([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    if backend is on_flower:
        for client in list(engine.backend.driver.grid.clients.values())[:4]:
            client.fail = True
    else:
        engine.backend.world.fail = lambda client: client < 4
    row = engine.round()
    assert engine.ended == "all-answered"
    assert (row["ok"], row["failed"], row["seconds"]) == (2, 4, pytest.approx(6.0))


@BOTH
def test_a_round_closes_at_its_deadline(backend):
    engine = backend([1.0, 2.0, 3.0, 11.0, 12.0, None])
    row = engine.round()
    assert engine.ended == "deadline"
    lost = 1 if backend is on_simulator else 0  # a real server cannot tell the lost from the late
    assert (row["ok"], row["late"], row["failed"]) == (3, 3 - lost, lost)
    assert row["seconds"] == pytest.approx(10.0)


@BOTH
def test_too_few_replies_leave_the_model_and_are_followed_by_a_pause_that_doubles(backend):
    engine = backend([1.0, 11.0, 11.0, 11.0, 11.0, 11.0], min_replies=2, back_off=40.0, over_select=2.0, cohort_size=3)
    before, begin, clock = engine.model.params, engine.backend.clock, []
    for _ in range(3):
        row = engine.round()
        assert row["abandoned"] == 1.0
        assert row["ok"] == 0
        assert row["filtered"] == 1
        assert engine.history.reasons[-1][0] == "round-abandoned"
        clock.append(engine.backend.clock - begin)
    assert np.array_equal(engine.model.params, before)
    np.testing.assert_allclose(clock, [50.0, 140.0, 310.0])  # 10 seconds each, then 40, 80 and 160
    if backend is on_flower:
        for client in engine.backend.driver.grid.clients.values():
            client.seconds = 1.0
    else:
        engine.backend.world.seconds = lambda index, clients, work: np.ones(clients.size)
    row = engine.round()
    assert "abandoned" not in row
    assert engine.back_off.count == 0
    assert not np.array_equal(engine.model.params, before)


def fates(engine, rounds):
    """(came, lost) as over-selection learns it, round by round."""
    learned, learn = [], engine.over_selection.learn
    engine.over_selection.learn = lambda came, lost: (learned.append((came, lost)), learn(came, lost))[1]
    for _ in range(rounds):
        engine.round()
    return learned


def test_fates_of_those_cut_off_are_known_at_once_in_the_simulator():
    """Six asked, four used: one would have come, one would not."""
    engine = on_simulator([1.0, 2.0, 3.0, 4.0, 5.0, None])
    assert fates(engine, 1) == [(5, 1)]


@pytest.mark.parametrize("evaluate", [False, True])
def test_fates_of_those_cut_off_are_learned_later_on_flower(evaluate):
    """The fifth comes while another round runs, or while the model is evaluated; the sixth is given up at last."""
    inner = FedAvg(fraction_evaluate=1.0 if evaluate else 0.0)
    engine = on_flower([1.0, 2.0, 3.0, 4.0, 5.0, None], inner)
    if evaluate:
        grid = engine.backend.driver.grid
        for client in grid.clients.values():
            client.delay = lambda m, c=client: 2.0 if m.metadata.message_type == "evaluate" else Timed.delay(c, m)
    learned = fates(engine, 12)
    came, lost = (sum(column) for column in zip(*learned, strict=True))
    assert learned[0] == (4, 0)
    unknown, asked = engine.backend._given_up, np.concatenate(engine.history.cohorts)
    assert lost == np.count_nonzero(asked == 5) - (5 in unknown) >= 1
    assert came + lost + len(unknown) == asked.size


@BOTH
def test_nobody_there(backend):
    """A round without clients ends, changes nothing, and is not held against anybody."""
    engine = backend([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    here = [False]
    if backend is on_flower:
        grid = engine.backend.driver.grid
        grid.online = lambda: list(grid.clients) if here[0] else []
    else:
        engine.backend.world.available = lambda index, clock: np.arange(6 if here[0] else 0)
    before, begin = engine.model.params, engine.backend.clock
    row = engine.round()
    assert (row["asked"], row["ok"]) == (0, 0)
    assert "abandoned" not in row
    assert engine.backend.clock > begin
    assert np.array_equal(engine.model.params, before)
    here[0] = True
    assert engine.round()["ok"] == 4


def test_nobody_there_in_a_loop_that_is_not_ours():
    grid = FakeGrid([FakeClient("0"), FakeClient("1")])
    strategy = CohortStrategy(FedAvg(), selector="uniform", cohort_size=2, deadline=5.0, **timing(grid))
    assert len(list(strategy.configure_train(1, FIRST, ConfigRecord(), grid))) == 2
    assert strategy.aggregate_train(1, []) == (None, None)
    grid.online = lambda: []
    assert list(strategy.configure_train(2, FIRST, ConfigRecord(), grid)) == []
    assert strategy.aggregate_train(2, []) == (None, None)


def test_a_reply_that_is_refused_in_comparison_does_not_close_the_round():
    """The fourth reply dominates the others: the round waits for the fifth."""
    kinds = {3: "update that dominates"}
    clients = [Liar(f"{i:02}", lambda r, i=i: kinds.get(i, ""), seconds=1.0 + i) for i in range(6)]
    grid = FakeGrid(clients)
    engine = CohortStrategy(method="fedavg", selector="uniform", **POLICY, **timing(grid))._begin(grid, FIRST, 1e6)
    row = engine.round()
    assert (row["ok"], row["rejected"], row["late"]) == (4, 1, 1)
    assert row["seconds"] == pytest.approx(5.0)


def test_asynchronous_rounds_expire_everybody_after_its_own_time():
    """While two new clients are probed for, a third one's time runs out; the two have theirs still before them."""

    class Slow(World):
        def seconds(self, index, clients, work):
            return np.where(clients == 0, 8.0, np.where(clients < 3, 1.0, 9.9))

    world = Slow(8)
    engine = simulated(make_selector("power-of-choice(d=8)"), world, cohort_size=3, buffer_size=2, seed=1).engine
    late = [row["late"] for row in (engine.round() for _ in range(20))]
    assert late == [0.0] * 20


@pytest.mark.parametrize("kind", [Simulated, OnFlower])
def test_a_crash_at_every_moment_twice(tmp_path, kind):
    """Two rounds; the process dies at the n-th moment, and the next one does. It ends as if nothing had happened."""
    disk = FaultyDisk()
    try:
        whole = ended(kind, disk, tmp_path / "whole", None)[:2]
        dies_in, crashes = 0, 2
        while crashes:
            *found, crashes = ended(kind, disk, tmp_path / str(dies_in), dies_in)
            assert found == list(whole), dies_in
            dies_in += 1
        assert dies_in > 20
    finally:
        disk.remove()


def ended(kind, disk, folder, dies_in):
    """Asks and tells, the model, and the number of crashes of a run whose first two processes die so soon."""
    folder.mkdir()
    script, crashes, rounds = Script(disk, folder, "oort", 0), 0, 0
    # all answer, so that on Flower nobody is busy for one process and free for the next
    script.policy = {"over_select": 1.0}
    script.fates = {0: ["good", "nan", "slow"] * 4, 1: ["slow", "fails", "twice", "stray"] * 3}
    if kind is OnFlower:
        script.network = Network(script)
        script.network.grow(MANY)
    while rounds < 2:
        target = tmp_copy(folder, crashes)
        disk.dies_in, disk.at_death = dies_in if crashes < 2 else None, lambda to=target: copied(script.folder, to)
        process = None
        try:
            process = kind(script)
            while process.engine.session.index < 2:
                process.round()
            rounds = 2
        except Crash:
            crashes, script.folder = crashes + 1, target
            disk.dies_in = None
        if process is not None:
            process.gone()
    disk.dies_in = None
    asks = [entry for entry in records(script.folder) if entry[0] in ("ask", "tell")]
    model = process.engine.model.params
    assert model.tobytes() == expected_model(script.folder, 2 * MANY)[0].tobytes()
    return asks, model.tolist(), crashes


def tmp_copy(folder, crashes):
    return folder.with_name(f"{folder.name}-after-{crashes}")


DROPPING = RunConfig(
    selector="oort",
    task="quadratic",
    world="mixed-v1",
    rounds=8,
    cohort_size=6,
    seed=4,
    over_select="adaptive",
    engine="numpy",
)


def test_simulated_rounds_adapt_and_resume_the_same(tmp_path):
    whole = run(DROPPING, tmp_path / "whole").history
    asked = whole.column("asked")
    assert asked[0] > asked[-1] >= 6  # from caution to what is needed
    assert (whole.column("ok") >= 6).all()
    simulation = build(DROPPING)
    journal = Journal.create(tmp_path / "part" / "journal.db", {"config": DROPPING.to_dict(), "version": "0.1.0"})
    simulation.attach(journal, Snapshots(tmp_path / "part" / "snapshots"))
    steps = simulation.steps()
    for _ in range(4):
        next(steps)
    journal.close()
    assert resume(tmp_path / "part").history.rows == whole.rows
