"""Epsilon-greedy and UCB1: rewards, values and indices by hand; shares; liars."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedcohort.core.stats import spearman
from fedcohort.errors import BadParameter
from fedcohort.selectors._parts.bandit_reward import RewardState, reward
from fedcohort.selectors.epsilon_greedy import EpsilonGreedy
from fedcohort.selectors.ucb1 import UCB1
from fedcohort.testing import SelectorContract
from fedcohort.types import Outcome, Round, RoundResult, Signals


class TestGreedyUtility(SelectorContract):
    def make(self):
        return EpsilonGreedy(reward="utility", step=0.0, explore_decay=0.98)


class TestUCB1Discounted(SelectorContract):
    def make(self):
        return UCB1(reward="utility", forget=0.95, explore=0.5)


def ask(size, n, index=0, available=None):
    return Round(index, size, np.arange(n) if available is None else np.asarray(available), n)


def told(index, clients, before, after, seconds=None, outcome=None):
    clients = np.asarray(clients, np.int64)
    outcome = np.full(clients.size, Outcome.OK, np.int8) if outcome is None else np.asarray(outcome, np.int8)
    columns = {"loss_before": np.asarray(before, float), "loss_after": np.asarray(after, float)}
    seconds = np.ones(clients.size) if seconds is None else np.asarray(seconds, float)
    return RoundResult(index, clients, outcome, seconds, Signals(columns))


def test_reward_by_hand():
    """Shares of the loss taken: 1/2 3/4 0 (it rose), seconds 1 3 1: r = 1/2 1/4 0. Median c = 1/4.

    y = (1/2)/(3/4) = 2/3, 1/2, 0. The fourth never came: 0, and it counts. The fifth's loss is NaN: it does not count.
    Next round r = 1: c = 0.9 * 0.25 + 0.1 * 1 = 0.325 and y = 1 / 1.325.
    """
    s = RewardState()
    y, counts = reward(
        s,
        told(0, range(5), [2, 4, 1, np.nan, np.nan], [1, 1, 2, np.nan, 1], [1, 3, 1, 9, 1], [0, 0, 0, Outcome.LATE, 0]),
        "improvement",
    )
    np.testing.assert_allclose(y, [2 / 3, 1 / 2, 0, 0, 0])
    assert counts.tolist() == [True, True, True, True, False]
    y, _ = reward(s, told(1, [0], [2], [0]), "improvement")
    assert s.usual == pytest.approx(0.325)
    assert y[0] == pytest.approx(1 / 1.325)


def test_reward_is_bounded_and_ignores_units():
    """A utility a thousand times too high earns less than 1; minutes instead of seconds change nothing."""
    u = np.array([1.0, 2.0, 3000.0])
    fast = RoundResult(0, np.arange(3), np.zeros(3, np.int8), np.ones(3), Signals({"utility": u}))
    slow = RoundResult(0, np.arange(3), np.zeros(3, np.int8), np.full(3, 60.0), Signals({"utility": u}))
    one, two = reward(RewardState(), fast, "utility")[0], reward(RewardState(), slow, "utility")[0]
    np.testing.assert_allclose(one, [1 / 3, 1 / 2, 3000 / 3002])
    np.testing.assert_allclose(one, two)


def test_greedy_values_by_hand():
    """Pay 1/2 (alone: it is its own median), then 0 (late): with step 0.3 the value is 0.5 - 0.15; the mean is 1/4."""
    for step, want in ((0.3, 0.35), (0.0, 0.25)):
        s = EpsilonGreedy(step=step)
        s.observe(told(0, [0], [2], [1]))
        s.observe(told(1, [0], [np.nan], [np.nan], [30], [Outcome.LATE]))
        assert s.state.value[0] == pytest.approx(want)


def test_untried_stand_between_better_and_worse():
    """Three rewarded clients get 2/3, 1/2, 1/3 (r = 0.8 0.4 0.2); of them and an untried one: first 0, last 2."""
    s = EpsilonGreedy(explore=0.0)
    s.observe(told(0, [0, 1, 2], [1, 1, 1], [0.2, 0.6, 0.8]))
    np.testing.assert_allclose(s.state.value, [2 / 3, 1 / 2, 1 / 3], rtol=1e-6)
    assert s.select(ask(1, 4, 1), np.random.default_rng(0)).clients.tolist() == [0]
    assert 2 not in s.select(ask(3, 4, 1), np.random.default_rng(0)).clients


def test_each_place_is_random_with_probability_eps():
    """10 places, eps = 0.3, 400 cohorts: 3 random ones on average, binomial variance."""
    s = EpsilonGreedy(explore=0.3)
    random = [s.select(ask(10, 50), np.random.default_rng(i)).why["explored"].sum() for i in range(400)]
    assert abs(np.mean(random) - 3) < 4.5 * math.sqrt(2.1 / 400)
    assert np.var(random) == pytest.approx(2.1, rel=0.35)


def test_share_decays_to_its_floor():
    s = EpsilonGreedy(explore=0.8, explore_decay=0.5, explore_min=0.1)
    assert [s._eps(t) for t in (0, 1, 2, 9)] == [0.8, 0.4, 0.2, 0.1]
    assert EpsilonGreedy(explore=0.0)._eps(5) == 0.0  # the floor never raises it


def test_ucb_index_by_hand():
    """Client 0: rewards 1/2 and 1/2 (c stays); client 1 once 1/2, client 2 never. t = 3: bonus sqrt(2 ln 3 / n).

    0: 0.5 + sqrt(1.098612) = 1.548147; 1: 0.5 + sqrt(2.197225) = 1.982304; 2: infinite.
    """
    s = UCB1()
    s.observe(told(0, [0, 1], [2, 2], [1, 1]))
    s.observe(told(1, [0], [2], [1]))
    cohort = s.select(ask(3, 3, 2), np.random.default_rng(0))
    score = np.empty(3)
    score[cohort.clients] = cohort.why["score"]
    np.testing.assert_allclose(score, [1.548147, 1.982304, np.inf], rtol=1e-6)
    assert s.select(ask(1, 3, 2), np.random.default_rng(0)).clients.tolist() == [2]
    assert set(s.select(ask(2, 3, 2), np.random.default_rng(0)).clients) == {1, 2}


def test_ucb_tries_everybody_before_anybody_twice():
    s, seen = UCB1(), []
    for index in range(4):
        cohort = s.select(ask(5, 20, index), np.random.default_rng(index)).clients
        seen += cohort.tolist()
        s.observe(told(index, cohort, np.ones(5), np.full(5, 0.1)))
    assert sorted(seen) == list(range(20))


def test_silence_pays_nothing_and_nonsense_counts_as_asked():
    s = UCB1()
    s.observe(told(0, [0, 1], [2, 2], [1, 1]))
    s.observe(told(1, [0, 1], [np.nan, np.inf], [np.nan, 1], [9, 1], [Outcome.FAILED, Outcome.OK]))
    np.testing.assert_allclose(s.state.mean, [0.25, 0.5])
    assert s.state.times.tolist() == [2, 2]


def test_forgetting_brings_doubt_back():
    s = UCB1(forget=0.5)
    s.observe(told(0, [0, 1], [2, 2], [1, 1]))
    s.observe(told(1, [0], [2], [1]))
    assert s.state.times.tolist() == [1.5, 0.5]


@pytest.mark.parametrize("make", [EpsilonGreedy, UCB1])
def test_slots_not_positions(make):
    s = make()
    s.observe(told(0, range(20), np.ones(20), 1 - np.arange(20) / 20))
    if make is EpsilonGreedy:
        s.explore = s.explore_min = 0.0
    assert s.select(ask(1, 20, 1, [2, 5, 11]), np.random.default_rng(0)).clients.tolist() == [11]


@pytest.mark.parametrize("make", [lambda: EpsilonGreedy(explore=0.4), lambda: UCB1(explore=0.3)])
@pytest.mark.parametrize("which", ["both", "before"])
def test_a_liar_does_not_move_the_honest(make, which):
    """Client 0 of 40 reports losses a thousand times too high, both or the one before training; 60 rounds of 10.

    What the honest truly earn rises with the slot. A lie about both cancels; about the first alone it earns at most 1.
    """

    def correlation(lie):
        gain, counts = np.linspace(0.1, 0.6, 40), np.zeros(40)
        for seed in range(6):
            s = make()
            for index in range(60):
                who = np.sort(s.select(ask(10, 40, index), np.random.default_rng([seed, index])).clients)
                counts[who] += 1
                factor = np.where(who == 0, lie, 1.0)
                before = np.full(10, 2.0)
                after = before * (1 - gain[who]) * (factor if which == "both" else 1.0)
                s.observe(told(index, who, before * factor, after))
        return spearman(gain[1:], counts[1:])

    honest, lied = correlation(1.0), correlation(1000.0)
    assert honest > 0.8
    assert abs(honest - lied) < 0.05


@pytest.mark.parametrize(
    "bad",
    [{"explore": 1.5}, {"explore_decay": 0.0}, {"explore_min": -0.1}, {"step": 2.0}, {"reward": "gold"}],
)
def test_bad_parameters_of_greedy_are_named(bad):
    with pytest.raises(BadParameter, match=next(iter(bad))):
        EpsilonGreedy(**bad)


@pytest.mark.parametrize("bad", [{"explore": -1.0}, {"forget": 0.0}, {"reward": "gold"}])
def test_bad_parameters_of_ucb_are_named(bad):
    with pytest.raises(BadParameter, match=next(iter(bad))):
        UCB1(**bad)
