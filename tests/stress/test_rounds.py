"""The round engine: how many are asked, when a round ends, pauses, late fates, and coming back after a crash."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom

from fedcohort.errors import BadParameter, OutOfTurn
from fedcohort.experiment.config import RunConfig
from fedcohort.experiment.runs import build, resume, run
from fedcohort.rounds.engine import Policy, RoundEngine
from fedcohort.rounds.over_selection import BackOff, OverSelection, enough_for
from fedcohort.rounds.session import Session
from fedcohort.selectors.uniform import Uniform
from fedcohort.storage.journal import Journal
from fedcohort.types import Outcome


@pytest.mark.parametrize(("lost", "asked"), [(0.0, 100), (0.1, 124), (0.3, 170), (0.5, 248)])
def test_the_published_factors(lost, asked):
    assert enough_for(100, lost) == asked


@pytest.mark.parametrize("size", [1, 2, 7, 40, 2000])
@pytest.mark.parametrize("lost", [0.01, 0.2, 0.6, 0.85])
def test_the_optimum_is_the_smallest_that_does(size, lost):
    """Against SciPy's binomial: m suffices and m - 1 does not."""
    m = enough_for(size, lost)
    assert binom.sf(size - 1, m, 1 - lost) >= 0.999 - 1e-9
    assert m == size or binom.sf(size - 1, m - 1, 1 - lost) < 0.999


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.5])
def test_measured_drop_out_is_enough_and_not_too_much(rate):
    """From knowing nothing: 99.9 % of 4000 rounds (with three standard errors of luck), at most 1.05 times m*."""
    rng, asking, reached, asked = np.random.default_rng(int(100 * rate)), OverSelection(), 0, 0
    for _ in range(4000):
        many = asking.ask_for(100)
        came = int(rng.binomial(many, 1 - rate))
        asking.learn(came, many - came)
        reached, asked = reached + (came >= 100), asked + many
    assert reached / 4000 >= 0.999 - 3 * np.sqrt(0.999 * 0.001 / 4000)
    assert asked / 4000 <= 1.05 * enough_for(100, rate)


def test_a_jump_is_made_good_and_forgotten_again():
    rng, asking = np.random.default_rng(0), OverSelection()
    missed = []
    for rate in (0.1, 0.5, 0.1):
        misses = 0
        for _ in range(100):
            many = asking.ask_for(100)
            came = int(rng.binomial(many, 1 - rate))
            asking.learn(came, many - came)
            misses += came < 100
        missed.append(misses)
    assert missed[1] <= 5
    assert asking.ask_for(100) <= 130


def test_rules_are_checked():
    with pytest.raises(BadParameter, match="often"):
        OverSelection("often")
    with pytest.raises(BadParameter, match=r"0\.5"):
        OverSelection(0.5)
    assert OverSelection(1.3).ask_for(10) == 13
    for keys in ({"size": 0}, {"deadline": float("inf")}, {"deadline": 0.0}, {"quorum": 0}, {"quorum": 4}):
        with pytest.raises(BadParameter):
            Policy(**{"size": 3, "deadline": 10.0, **keys})


def test_pauses_double_up_to_a_limit_and_end_with_success():
    back = BackOff(2.0, 10.0)
    assert [back.pause(True) for _ in range(4)] == [2.0, 4.0, 8.0, 10.0]
    assert back.pause(False) == 0.0
    assert back.pause(True) == 2.0


def reply(client, index):
    return {"client": client, "round": index, "weight": 1.0, "steps": 1, "signals": {}, "delta": None}


def started(now, journal=None, **keys):
    policy = Policy(**{"size": 3, "deadline": 10.0, "quorum": 2, "over_select": 1.5, "back_off": 4.0, **keys})
    return RoundEngine(Session(Uniform(), cohort_size=3, seed=1, journal=journal), policy, clock=lambda: now[0])


def test_a_round_closes_at_its_size_and_the_rest_is_late():
    now = [0.0]
    engine = started(now)
    clients = engine.plan(np.arange(9)).clients.tolist()
    assert len(clients) == 5
    for client in reversed(clients[:3]):
        assert engine.due() is None
        now[0] += 1.0
        assert engine.reply(reply(client, 0)) is None
    closed = engine.due()
    assert (closed.reason, closed.abandoned) == ("size-reached", False)
    assert [r["client"] for r in closed.accepted] == sorted(clients[:3])  # whatever the order of arrival
    assert np.bincount(closed.outcome, minlength=5).tolist() == [3, 2, 0, 0, 0]
    engine.settle(closed)
    assert engine.wait() == 0.0
    assert engine.reply(reply(clients[3], 0)) == "round-over"


def test_a_round_closes_when_everybody_has_answered_or_failed():
    now = [0.0]
    engine = started(now)
    clients = engine.plan(np.arange(9)).clients.tolist()
    for client in clients[:2]:
        engine.reply(reply(client, 0))
    for client in clients[2:]:
        engine.failed(client, "connection-lost")
    closed = engine.due()
    assert (closed.reason, closed.abandoned) == ("all-answered", False)
    assert set(closed.reasons.values()) == {"connection-lost"}


def test_below_quorum_is_abandoned_and_followed_by_a_pause():
    now = [0.0]
    engine = started(now)
    for index, start in enumerate((0.0, 14.0, 32.0)):  # 10 seconds each, then 4 and 8 seconds of pause
        now[0] = start - 0.01
        if index:
            assert engine.plan(np.arange(9)) is None
        now[0] = start
        clients = engine.plan(np.arange(9)).clients.tolist()
        engine.reply(reply(clients[0], index))
        now[0] = start + 9.99
        assert engine.due() is None
        now[0] = start + 10.0
        closed = engine.due()
        assert (closed.reason, closed.abandoned, closed.accepted) == ("below-quorum", True, ())
        assert (closed.outcome == Outcome.FILTERED).sum() == 1
        engine.settle(closed)
    assert engine.wait() == 16.0


def test_nobody_there_is_no_round():
    engine = started([0.0])
    assert engine.plan(np.empty(0, np.int64)) is None
    assert not engine.open


def test_turns_are_kept():
    now = [0.0]
    engine = started(now)
    engine.plan(np.arange(9))
    with pytest.raises(OutOfTurn, match="is open"):
        engine.plan(np.arange(9))
    now[0] = 10.0
    closed = engine.due()
    engine.settle(closed)
    with pytest.raises(OutOfTurn):
        engine.settle(closed)


def test_fates_of_those_cut_off_are_learned_later():
    """Five asked, three used. One comes later, one never: counted as 4 of 5, not as 3 of 5 and not as 3 of 3."""
    now = [0.0]
    engine = started(now, over_select="adaptive")
    engine.over_selection.lost, engine.over_selection.seen = 0.0, 1e-9
    engine.over_selection.rule = 1.5
    clients = engine.plan(np.arange(9)).clients.tolist()
    for client in clients[:3]:
        engine.reply(reply(client, 0))
    engine.settle(engine.due())
    assert (round(engine.over_selection.lost), round(engine.over_selection.seen)) == (0, 3)
    now[0] = 5.0
    engine.reply(reply(clients[3], 0))
    now[0] = 10.0
    for client in engine.plan(np.arange(9)).clients.tolist()[:3]:
        engine.reply(reply(client, 1))
    engine.settle(engine.due())
    assert engine.over_selection.lost == pytest.approx(1.0)
    assert engine.over_selection.seen == pytest.approx(3 * 0.995 + 3 + 2)


def test_coming_back_abandons_the_open_round(tmp_path):
    now = [0.0]
    journal = Journal.create(tmp_path / "journal.db", {})
    engine = started(now, journal)
    clients = engine.plan(np.arange(9)).clients.tolist()
    for client in clients:
        engine.reply(reply(client, 0))
    engine.settle(engine.due())
    second = engine.plan(np.arange(9)).clients.tolist()
    journal.close()  # gone, with round 1 open
    journal = Journal.open(tmp_path / "journal.db")
    again = started(now, journal)
    assert again.recover(journal.records()) == 1
    assert again.session.index == 2
    last = list(journal.records("tell"))[-1].unpack()
    assert last[0]["clients"].tolist() == sorted(second)
    assert last[1]["metrics"]["ended"] == "server-restarted"
    assert again.recover(journal.records()) == 0
    journal.close()


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
    from fedcohort.storage.snapshots import Snapshots

    simulation = type(simulation)(
        simulation.session.selector,
        simulation.method,
        simulation.world,
        simulation.task,
        DROPPING,
        journal=journal,
        snapshots=Snapshots(tmp_path / "part" / "snapshots"),
    )
    steps = simulation.steps()
    for _ in range(4):
        next(steps)
    journal.close()
    assert resume(tmp_path / "part").history.rows == whole.rows


def test_a_simulated_round_below_quorum_leaves_the_model_and_pauses():
    config = RunConfig(**{**DROPPING.to_dict(), "over_select": 1.0, "min_replies": 6, "back_off": 1000.0, "rounds": 6})
    simulation = build(config)
    models, abandoned = [simulation.model.params], []
    for row in simulation.steps():
        abandoned.append("abandoned" in row)
        assert np.array_equal(simulation.model.params, models[-1]) == abandoned[-1]
        assert not abandoned[-1] or (row["ok"] == 0 and row["clock"] >= 1000.0)
        models.append(simulation.model.params)
    assert any(abandoned)
    assert not all(abandoned)
