"""Oort: the contract for every preset, one round by hand, and the bugs that its published code has."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedcohort.core.stats import spearman
from fedcohort.errors import BadParameter
from fedcohort.selectors.oort import Oort
from fedcohort.testing import SelectorContract
from fedcohort.types import Outcome, Round, RoundResult, Signals


class TestOortCode(SelectorContract):
    def make(self):
        return Oort(preset="code")


class TestOortFedacs(SelectorContract):
    def make(self):
        return Oort(preset="fedacs")


def told(index, clients, utility, seconds, outcome=None, name="utility"):
    clients = np.asarray(clients, np.int64)
    outcome = np.full(clients.size, Outcome.OK, np.int8) if outcome is None else np.asarray(outcome, np.int8)
    return RoundResult(index, clients, outcome, np.asarray(seconds, float), Signals({name: np.asarray(utility, float)}))


def ask(size, n, index=0, samples=None):
    profiles = Signals({"samples": np.ones(n) if samples is None else np.asarray(samples)})
    return Round(index, size, np.arange(n), n, profiles=profiles)


def test_one_round_by_hand():
    """Six clients, all tried in round 0 with utilities 10 20 30 40 50 60 and durations 1 1 1 2 2 4; now R = 2.

    clip = 1 leaves u as it is. Scale: low = 0.999 * 10 = 9.99, range = 50.01.
        scaled = 0.01/50.01, 10.01/50.01, 20.01/50.01, 30.01/50.01, 40.01/50.01, 1
    Bonus: sqrt(0.1 ln 2 / 1) = 0.263277 for all.
    T: the percentile 50 of (1 1 1 2 2 4) at position int(0.5 * 5) = 2 is 1. Penalty (1/t)^2: 1 1 1 1/4 1/4 1/16.
    """
    oort = Oort(clip=1.0, percentile=50.0)
    oort.select(ask(6, 6), np.random.default_rng(0))
    oort.observe(told(0, range(6), [10, 20, 30, 40, 50, 60], [1, 1, 1, 2, 2, 4]))
    score, bonus, penalty = oort._score(np.arange(6), 2)
    scaled = np.array([0.01, 10.01, 20.01, 30.01, 40.01, 50.01]) / 50.01
    np.testing.assert_allclose(bonus, 0.263277, rtol=1e-5)
    np.testing.assert_allclose(penalty, [1, 1, 1, 0.25, 0.25, 0.0625], rtol=1e-6)
    np.testing.assert_allclose(score, (scaled + 0.263277) * [1, 1, 1, 0.25, 0.25, 0.0625], rtol=1e-4)


def test_penalty_falls_with_duration():
    oort = Oort()
    oort.select(ask(50, 50), np.random.default_rng(0))
    seconds = np.linspace(1, 9, 50)
    oort.observe(told(0, range(50), np.full(50, 5.0), seconds))
    _, _, penalty = oort._score(np.arange(50), 2)
    assert (np.diff(penalty) <= 0).all()
    assert penalty[-1] < 0.1 < penalty[0] == 1.0


def test_exploration_share_decays_to_its_floor():
    oort = Oort(explore=0.9, explore_decay=0.5, explore_min=0.2)
    assert [oort._eps(i) for i in (0, 1, 2, 3, 50)] == [0.9, 0.45, 0.225, 0.2, 0.2]


def test_the_never_tried_are_drawn_by_samples():
    hits = np.zeros(40)
    samples = np.r_[np.full(20, 9.0), np.full(20, 1.0)]
    for seed in range(400):
        hits[Oort().select(ask(4, 40, samples=samples), np.random.default_rng(seed)).clients] += 1
    assert hits[:20].sum() > 5 * hits[20:].sum()


def test_pacer_raises_the_percentile_when_utility_falls():
    oort = Oort(pacer_step=2, pacer_delta=5.0)
    for index, u in enumerate([9.0, 9.0, 3.0, 3.0]):
        oort.observe(told(index, [0, 1], [u, u], [1, 1]))
    assert oort.state.percentile == 15.0
    for index, u in enumerate([20.0, 20.0], start=4):
        oort.observe(told(index, [0, 1], [u, u], [1, 1]))
    assert oort.state.percentile == 15.0  # rising utility leaves T alone


def test_code_pacer_moves_both_ways():
    oort = Oort(preset="code", pacer_step=1, percentile=20.0)
    oort.observe(told(0, [0], [10.0], [1]))
    oort.observe(told(1, [0], [10.5], [1]))  # within 10 %: stalled
    assert oort.state.percentile == 25.0
    oort.observe(told(2, [0], [100.0], [1]))  # five times as much: a jump
    assert oort.state.percentile == 20.0


def test_blacklisted_rest_but_never_more_than_thirty_percent():
    oort = Oort(blacklist=2)
    for index in range(3):
        oort.observe(told(index, range(8), np.arange(8.0), np.ones(8)))
    rnd = ask(2, 10, index=3)
    oort.select(rnd, np.random.default_rng(0))
    assert oort._allowed(rnd.available, 10, 2).size == 7
    assert oort._allowed(np.arange(3), 10, 3).size == 3  # a cohort that needs everybody gets everybody


def test_everybody_blacklisted_still_gives_a_cohort():
    oort = Oort(blacklist=1)
    for index in range(5):
        oort.observe(told(index, range(6), np.ones(6), np.ones(6)))
    assert oort.select(ask(6, 6, index=5), np.random.default_rng(0)).clients.size == 6


@pytest.mark.parametrize("utility", [np.zeros(5), np.full(5, 3.0)])
def test_k_equal_to_the_explored_and_equal_rewards(utility):
    """Published bugs: an index past the end when k is everybody, and a division by a zero range."""
    oort = Oort(explore=0.0, explore_min=0.0)
    oort.observe(told(0, range(5), utility, np.ones(5)))
    assert sorted(oort.select(ask(5, 5, index=1), np.random.default_rng(0)).clients) == list(range(5))


def test_few_clients_do_not_break_the_odds():
    """A bug reported for the original code: probabilities that do not sum to one with few clients."""
    oort = Oort()
    for index in range(10):
        cohort = oort.select(ask(1, 2, index=index), np.random.default_rng(index))
        assert cohort.clients.size == 1
        oort.observe(told(index, cohort.clients, [1e-12], [1.0]))


def test_failed_clients_count_as_tried_without_changing_their_utility():
    oort = Oort()
    oort.observe(told(0, [0, 1], [4.0, 5.0], [1, 1]))
    oort.observe(told(1, [0, 1], [np.nan, np.nan], [7, 7], [Outcome.FAILED, Outcome.LATE]))
    assert oort.state.utility.tolist() == [4.0, 5.0]
    assert oort.state.seconds.tolist() == [7.0, 7.0]
    assert oort.state.explored.all()


def test_first_rounds_of_the_fedacs_version_try_everybody_once():
    oort = Oort(preset="fedacs")
    seen = []
    for index in range(4):
        cohort = oort.select(ask(5, 20, index=index), np.random.default_rng(index)).clients
        seen += cohort.tolist()
        oort.observe(told(index, cohort, np.ones(5), np.ones(5), name="train_loss"))
    assert sorted(seen) == list(range(20))


def test_the_fedacs_version_admits_a_fifth_of_all_clients_and_bans_with_the_last_round():
    """Clients 0 to 9 of 20 were asked twice, which bans them. Then the best int(0.2 * 20) = 4 are drawn from."""
    oort = Oort(preset="fedacs", blacklist=2)
    oort.observe(told(0, range(20), np.r_[np.full(10, 9.0), np.arange(0.1, 1.1, 0.1)], np.ones(20), name="train_loss"))
    oort.observe(told(1, range(10), np.full(10, 9.0), np.ones(10), name="train_loss"))
    drawn = [oort.select(ask(2, 20, index=2), np.random.default_rng(seed)).clients for seed in range(50)]
    assert set(np.concatenate(drawn).tolist()) == {16, 17, 18, 19}


def test_a_liar_does_not_flatten_the_honest():
    """One client reports a thousandfold utility; the honest ranking by selection moves by less than 0.05."""

    def correlation(lie: float) -> float:
        truth = np.linspace(1, 10, 100)
        oort = Oort(explore=0.0, explore_min=0.0, blacklist=0, cutoff=0.0)
        oort.observe(told(0, range(100), np.r_[truth[0] * lie, truth[1:]], np.ones(100)))
        counts = np.zeros(100)
        for seed in range(600):
            counts[oort.select(ask(10, 100, index=1), np.random.default_rng(seed)).clients] += 1
        return spearman(truth[1:], counts[1:])

    honest, lied = correlation(1.0), correlation(1000.0)
    assert honest > 0.8
    assert abs(honest - lied) < 0.05


def test_why_names_the_parts_of_the_score():
    oort = Oort(explore=0.5, explore_decay=1.0)
    oort.observe(told(0, range(5), np.arange(1.0, 6.0), np.ones(5)))
    cohort = oort.select(ask(4, 10, index=1), np.random.default_rng(0))
    assert set(cohort.why) == {"score", "bonus", "penalty"}
    tried = cohort.clients < 5
    assert np.isfinite(cohort.why["score"][tried]).all()
    assert np.isnan(cohort.why["score"][~tried]).all()


@pytest.mark.parametrize("bad", [{"preset": "nature"}, {"explore": 1.5}, {"pacer_step": 0}, {"percentile": 0.0}])
def test_bad_parameters_are_named(bad):
    with pytest.raises(BadParameter, match=next(iter(bad))):
        Oort(**bad)


def test_bonus_grows_for_those_not_seen_for_long():
    oort = Oort()
    oort.observe(told(0, [0], [1.0], [1]))
    oort.observe(told(49, [1], [1.0], [1]))
    _, bonus, _ = oort._score(np.array([0, 1]), 51)
    assert bonus[0] == pytest.approx(math.sqrt(0.1 * math.log(51)), rel=1e-5)
    assert bonus[0] > bonus[1]


def test_a_cutoff_above_one_would_shut_everybody_out():
    with pytest.raises(BadParameter, match="cutoff"):
        Oort(cutoff=2.0)
