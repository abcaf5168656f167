"""FedCM: the contract, rounds by hand, and what the paper's ranking rule gets wrong."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedcohort.errors import BadParameter
from fedcohort.selectors.fedcm import FedCMTS, FedCMUCB, _log_posterior
from fedcohort.testing import SelectorContract
from fedcohort.types import Outcome, Round, RoundResult

OK, FILTERED, FAILED, LATE = Outcome.OK, Outcome.FILTERED, Outcome.FAILED, Outcome.LATE


class TestUCBZero(SelectorContract):
    def make(self):
        return FedCMUCB(silence="zero")


class TestUCBBernoulli(SelectorContract):
    exempt = {  # noqa: RUF012
        "uniform_ties": "half of the slots start at 1, by a draw that is fixed for the run",
        "relabelling": "the first mean is a function of the slot",
    }

    def make(self):
        return FedCMUCB(initial="bernoulli", prior_seed=3)


class TestTSZero(SelectorContract):
    def make(self):
        return FedCMTS(silence="zero")


def ask(size, n, index=0, available=None):
    return Round(index, size, np.arange(n) if available is None else np.asarray(available), n)


def told(index, clients, outcome):
    clients = np.asarray(clients, np.int64)
    return RoundResult(index, clients, np.asarray(outcome, np.int8), np.ones(clients.size))


def test_ucb_by_hand():
    """Six clients, all asked in t = 1; S_opt = {0, 1, 2}. In t = 2 clients 0 and 3 are asked; S_opt = {3}.

    Start: mean 1/2, a = 1.   t = 1: (1/2 + 1)/2 = 3/4 for 0 1 2, (1/2 + 0)/2 = 1/4 for 3 4 5; a = 2.
    t = 2: client 0: (2 * 3/4 + 0)/3 = 1/2; client 3: (2 * 1/4 + 1)/3 = 1/2; a = 3.
    t = 3: index = mean + sqrt(3 ln 3 / (2 a)); 3 ln 3 / 2 = 1.647918.
        0 and 3: 0.5 + sqrt(0.549306) = 1.241152;  1 and 2: 0.75 + sqrt(0.823959) = 1.657722;  4, 5: 1.157722.
    """
    s = FedCMUCB()
    s.observe(told(0, range(6), [OK, OK, OK, FILTERED, FILTERED, FILTERED]))
    s.observe(told(1, [0, 3], [FILTERED, OK]))
    np.testing.assert_allclose(s.state.mean, [0.5, 0.75, 0.75, 0.5, 0.25, 0.25])
    assert s.state.count.tolist() == [3, 2, 2, 3, 2, 2]
    cohort = s.select(ask(6, 6, index=2), np.random.default_rng(0))
    score = np.empty(6)
    score[cohort.clients] = cohort.why["score"]
    np.testing.assert_allclose(score, [1.241152, 1.657722, 1.657722, 1.241152, 1.157722, 1.157722], rtol=1e-5)
    np.testing.assert_allclose(cohort.why["mean"] + cohort.why["bonus"], cohort.why["score"], rtol=1e-6)
    assert set(s.select(ask(2, 6, index=2), np.random.default_rng(1)).clients) == {1, 2}


def test_ts_by_hand():
    """(1, 1) and r = 1, 0, 0: (2, 1), then (2, 2), then (2, 3)."""
    s = FedCMTS()
    for index, outcome in enumerate((OK, FILTERED, FILTERED)):
        s.observe(told(index, [1], [outcome]))
    assert s.state.alpha.tolist() == [1, 2]
    assert s.state.beta.tolist() == [1, 3]


@pytest.mark.parametrize("make", [FedCMUCB, FedCMTS, lambda: FedCMUCB(initial="bernoulli")])
@pytest.mark.parametrize(("n", "k"), [(20, 8), (20, 4), (7, 3), (5, 5), (1, 1)])
def test_the_first_cohort_is_never_empty_and_sizes_are_exact(make, n, k):
    """The printed rule gives nobody in 75 % of draws for 8 of 20."""
    for seed in range(20):
        assert make().select(ask(k, n), np.random.default_rng(seed)).clients.size == k


def test_no_doubt_in_the_first_round():
    """ln 1 = 0."""
    assert not FedCMUCB().select(ask(3, 6), np.random.default_rng(0)).why["bonus"].any()


def test_the_index_is_of_all_clients_not_only_of_the_last_cohort():
    """Client 2 is not asked for 50 rounds: its bonus grows with t until it is the first choice again."""
    s = FedCMUCB()
    s.observe(told(0, [0, 1, 2], [OK, OK, FILTERED]))
    for index in range(1, 50):
        s.observe(told(index, [0, 1], [OK, OK]))
    cohort = s.select(ask(1, 3, index=50), np.random.default_rng(0))
    assert cohort.clients.tolist() == [2]
    assert cohort.why["bonus"][0] == pytest.approx(math.sqrt(1.5 * math.log(51) / 2), rel=1e-5)


@pytest.mark.parametrize("outcome", [FAILED, LATE, Outcome.REJECTED])
def test_silence_is_no_evidence_but_counts_as_asked(outcome):
    """UCB: the mean stays, a grows. TS: Beta(2, 1) has mean 2/3; adding (2/3, 1/3) leaves it and adds one ask."""
    u, t = FedCMUCB(), FedCMTS()
    for s in (u, t):
        s.observe(told(0, [0], [OK]))
        s.observe(told(1, [0], [outcome]))
    assert (u.state.mean[0], u.state.count[0]) == (0.75, 3)
    np.testing.assert_allclose([t.state.alpha[0], t.state.beta[0]], [2 + 2 / 3, 1 + 1 / 3], rtol=1e-6)


def test_silence_as_zero():
    u, t = FedCMUCB(silence="zero"), FedCMTS(silence="zero")
    for s in (u, t):
        s.observe(told(0, [0], [FAILED]))
    assert u.state.mean[0] == 0.25
    assert (t.state.alpha[0], t.state.beta[0]) == (1, 2)


@pytest.mark.parametrize("make", [FedCMUCB, FedCMTS])
def test_finds_the_members_of_a_synthetic_s_opt(make):
    """Of 20 clients ten are in S_opt with probability 0.9 and ten with 0.2; 8 a round. Late rounds: mostly the ten."""
    rng, s, late = np.random.default_rng(5), make(), []
    for index in range(400):
        clients = np.sort(s.select(ask(8, 20, index), np.random.default_rng([1, index])).clients)
        if index >= 300:
            late.append(clients)
        member = rng.random(8) < np.where(clients < 10, 0.9, 0.2)
        s.observe(told(index, clients, np.where(member, OK, FILTERED)))
    share = (np.concatenate(late) < 10).mean()
    assert share > 0.93


@pytest.mark.parametrize(("a", "b"), [(1.0, 1.0), (4.0, 1.0), (1.0, 3.0), (2.5, 3.5)])
def test_posterior_draws_have_the_moments_of_a_beta(a, b):
    """Mean a / (a + b), variance a b / ((a + b)^2 (a + b + 1)); 40,000 draws."""
    n = 40_000
    theta = np.exp(_log_posterior(np.full(n, a, np.float32), np.full(n, b, np.float32), np.random.default_rng(1)))
    mean, var = a / (a + b), a * b / ((a + b) ** 2 * (a + b + 1))
    assert abs(theta.mean() - mean) < 4.5 * math.sqrt(var / n)
    assert theta.var() == pytest.approx(var, rel=0.05)


def test_bernoulli_start_is_half_ones_and_keyed_by_slot():
    small, large = FedCMUCB(initial="bernoulli"), FedCMUCB(initial="bernoulli")
    small.select(ask(1, 1000), np.random.default_rng(0))
    small.select(ask(1, 2000), np.random.default_rng(0))
    large.select(ask(1, 2000), np.random.default_rng(9))
    assert np.array_equal(small.state.mean, large.state.mean)
    assert set(np.unique(large.state.mean)) == {0, 1}
    assert 900 < large.state.mean.sum() < 1100
    other = FedCMUCB(initial="bernoulli", prior_seed=1)
    other.select(ask(1, 2000), np.random.default_rng(0))
    assert not np.array_equal(other.state.mean, large.state.mean)


def test_only_the_available_are_chosen_by_slot():
    """Positions within the available are not slots."""
    s = FedCMUCB()
    s.observe(told(0, range(10), [FILTERED] * 5 + [OK] * 5))
    here = [1, 3, 6, 8]
    assert set(s.select(ask(2, 10, 1, here), np.random.default_rng(0)).clients) == {6, 8}


@pytest.mark.parametrize("bad", [{"silence": "loud"}, {"initial": "zero"}, {"explore": -1.0}, {"prior_seed": -1}])
def test_bad_parameters_are_named(bad):
    with pytest.raises(BadParameter, match=next(iter(bad))):
        FedCMUCB(**bad)
