"""Rexp3: the contract for both presets, inclusion probabilities, one update by hand, restarts, liars."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedcohort.core.stats import spearman
from fedcohort.errors import BadParameter
from fedcohort.selectors.rexp3 import Rexp3, exp3m
from fedcohort.testing import SelectorContract
from fedcohort.types import Outcome, Round, RoundResult, Signals


class TestRexp3Fedacs(SelectorContract):
    runs = 40

    def make(self):
        return Rexp3(preset="fedacs")


class TestRexp3Restarting(SelectorContract):
    runs = 40
    exempt: ClassVar = {"learns": "restarted every fifth round here: it has no time to learn"}

    def make(self):
        return Rexp3(restart=5)


def ask(size, n, index=0, available=None):
    profiles = Signals({"samples": np.full(n, 4)})
    return Round(index, size, np.arange(n) if available is None else np.asarray(available), n, profiles=profiles)


def told(index, clients, insight, outcome=None):
    clients = np.asarray(clients, np.int64)
    outcome = np.full(clients.size, Outcome.OK, np.int8) if outcome is None else np.asarray(outcome, np.int8)
    signals = Signals({"insight": np.asarray(insight, np.float32).reshape(clients.size, -1)})
    return RoundResult(index, clients, outcome, np.ones(clients.size), signals)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 12), st.floats(0.01, 0.95), st.floats(0.1, 30.0))
@example(seed=3927, k=6, gamma=0.5, spread=22.0)  # the floor is all that most have
def test_inclusion_probabilities_sum_to_k(seed, k, gamma, spread):
    """Sum k, between gamma k / n and 1, in the order of the weights; proportional beyond the floor where not capped."""
    rng = np.random.default_rng(seed)
    w = np.exp(spread * rng.normal(size=12))
    pi = exp3m(w, k, gamma)
    assert pi.sum() == pytest.approx(k)
    assert pi.max() <= 1 + 1e-12
    assert pi.min() >= min(1.0, gamma * k / 12) - 1e-12
    order = np.argsort(w)
    assert (np.diff(pi[order]) >= -1e-12).all()
    below = np.flatnonzero(pi < 1 - 1e-9)
    extra = pi[below] - gamma * k / 12
    if k < 12 and below.size > 1:
        lost = 4 * np.finfo(float).eps / extra.sum()  # what pi cannot hold beside its floor
        np.testing.assert_allclose(extra / extra.sum(), w[below] / w[below].sum(), rtol=1e-6, atol=1e-9 + lost)


def test_the_draw_has_these_marginals():
    rng, bandit = np.random.default_rng(0), Rexp3()
    bandit.state.grow(6)
    bandit.state.weight[:] = np.log([1, 1, 2, 3, 5, 40]).astype(np.float32)
    want = exp3m(np.array([1, 1, 2, 3, 5, 40.0]), 3, 0.2)
    hits = np.zeros(6)
    for _ in range(3000):
        cohort = bandit.select(ask(3, 6), rng)
        hits[cohort.clients] += 1
        np.testing.assert_allclose(cohort.inclusion, want[cohort.clients], rtol=1e-5)
    assert np.abs(hits / 3000 - want).max() < 4 * 0.5 / math.sqrt(3000)


def test_six_clients_by_hand():
    """Everybody at weight 1, K = 3 of 6, gamma = 0.2, so pi = 1/2 for all and N pi = 3.

    Asked: 0 1 2 with insights 0, 3, 9 on a line and M = 4 each: mean 4, Q = 2 * (4, 1, 5) = 8 2 10.
    Ranks of -Q: client 1 first (x = 1), client 0 second (x = 1/2), client 2 last (x = 0).
    ln w gains K gamma x / (N pi) = 3 * 0.2 * x / 3 = 0.2 x: 0.1, 0.2, 0, and nothing for 3 4 5.
    Then the mean weight is scaled to one: minus ln of (e^.1 + e^.2 + 4) / 6.
    """
    bandit = Rexp3(explore=0.2)
    bandit.select(ask(3, 6), np.random.default_rng(0))
    bandit._asked = (0, np.array([2, 0, 1]), np.full(3, 0.5), 6)
    bandit.observe(told(0, [0, 1, 2], [0.0, 3.0, 9.0]))
    want = np.array([0.1, 0.2, 0, 0, 0, 0]) - math.log((math.exp(0.1) + math.exp(0.2) + 4) / 6)
    np.testing.assert_allclose(bandit.state.weight, want, atol=1e-6)


def test_the_authors_version_by_hand():
    """The same round with preset "fedacs": p = 1/6, x = -Q, ln w changes by gamma x / (N p) = -0.2 Q: -1.6 -0.4 -2."""
    bandit = Rexp3(preset="fedacs")
    bandit.select(ask(3, 6), np.random.default_rng(0))
    bandit._asked = (0, np.array([0, 1, 2]), np.full(3, 1 / 6), 6)
    bandit.observe(told(0, [0, 1, 2], [0.0, 3.0, 9.0]))
    change = np.array([-1.6, -0.4, -2.0, 0, 0, 0])
    np.testing.assert_allclose(bandit.state.weight, change - math.log(np.exp(change).mean()), atol=1e-6)
    assert bandit.restart == 0
    assert bandit.select(ask(3, 6, 1), np.random.default_rng(0)).inclusion is None


def test_the_estimate_is_unbiased():
    """E[ 1{i in S} x_i / pi_i ] = x_i: with fixed rewards the mean gain per client does not depend on its odds."""
    weights = np.log([1, 2, 4, 8, 1, 2, 4, 8]).astype(np.float32)
    rng, total = np.random.default_rng(1), np.zeros(8)
    for _ in range(4000):
        bandit = Rexp3()
        bandit.state.grow(8)
        bandit.state.weight[:] = weights
        cohort = bandit.select(ask(4, 8), rng)
        total[cohort.clients] += 1 / cohort.inclusion
    assert np.abs(total / 4000 - 1).max() < 0.1


def test_restarts_happen():
    """With Delta = 3, what round 2 learned is gone in round 3, for the draw as for the update."""
    bandit = Rexp3(restart=3)
    for index in range(3):
        bandit.select(ask(3, 6, index), np.random.default_rng(0))
        bandit.observe(told(index, [0, 1, 2], [0.0, 3.0, 9.0]))
        assert np.ptp(bandit.state.weight) > 0
    cohort = bandit.select(ask(3, 6, 3), np.random.default_rng(0))
    np.testing.assert_allclose(cohort.inclusion, 0.5)
    assert np.ptp(bandit.state.weight) > 0  # select changes nothing
    bandit.observe(told(3, cohort.clients, np.full(3, np.nan), [Outcome.FAILED] * 3))
    assert not bandit.state.weight.any()
    assert bandit.state.batch == 1


def test_never_restarts_where_told_so():
    bandit = Rexp3(restart=0)
    bandit.state.grow(6)
    bandit.observe(told(0, [0, 1, 2], [0.0, 3.0, 9.0]))
    bandit.observe(told(900, [0, 1], [np.nan] * 2, [Outcome.FAILED] * 2))
    assert bandit.state.weight.any()


def test_certain_clients_learn_nothing():
    """Exp3.M leaves those at the cap alone: with everybody asked, pi = 1 and weights stay."""
    bandit = Rexp3()
    cohort = bandit.select(ask(3, 3), np.random.default_rng(0))
    np.testing.assert_array_equal(cohort.inclusion, 1.0)
    bandit.observe(told(0, np.sort(cohort.clients), [0.0, 3.0, 9.0]))
    np.testing.assert_allclose(bandit.state.weight, 0.0, atol=1e-7)


def test_heavy_weights_stay_finite():
    bandit, rng = Rexp3(restart=0, explore=0.5), np.random.default_rng(0)
    spread = np.linspace(0.1, 3, 12)
    for index in range(600):
        cohort = np.sort(bandit.select(ask(4, 12, index), rng).clients)
        bandit.observe(told(index, cohort, spread[cohort, None] * rng.normal(size=(4, 8))))
    assert np.isfinite(bandit.state.weight).all()
    pi = bandit._odds(np.arange(12), 4, 600)
    assert pi.sum() == pytest.approx(4)
    assert pi[:4].mean() > pi[-4:].mean()


def test_a_liar_does_not_blur_the_honest():
    """One client sends a thousandfold insight: the odds of the honest keep their order.

    Cohorts are drawn uniformly: Exp3's own soon contain the same few, and their counts say little about the others.
    """

    def correlation(lie):
        scores = []
        for seed in range(4):
            rng, bandit = np.random.default_rng(seed), Rexp3(explore=0.3)
            truth = np.linspace(0.2, 1.2, 40)
            bandit.select(ask(10, 40), rng)
            for index in range(1, 200):
                cohort = np.sort(rng.choice(40, 10, replace=False))
                dw = truth[cohort, None] * rng.normal(size=(10, 16)) / 4
                dw[cohort == 0] *= lie
                bandit.observe(told(index, cohort, dw))
            scores.append(-spearman(truth[1:], bandit._odds(np.arange(40), 10, 200)[1:]))
        return np.mean(scores)

    honest = correlation(1.0)
    assert honest > 0.8
    assert abs(honest - correlation(1000.0)) < 0.05


def test_a_result_nobody_asked_for_is_weighed_as_if_all_were_there():
    bandit = Rexp3()
    bandit.state.grow(6)
    bandit.observe(told(4, [0, 1, 2], [0.0, 3.0, 9.0]))
    assert np.isfinite(bandit.state.weight).all()
    assert bandit.state.weight[1] > bandit.state.weight[2]


def test_bad_parameters_are_named():
    with pytest.raises(BadParameter, match="rank"):
        Rexp3(preset="ranks")
    with pytest.raises(BadParameter, match="explore"):
        Rexp3(explore=0.0)
    with pytest.raises(BadParameter, match="restart"):
        Rexp3(restart=-1)
