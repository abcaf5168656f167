"""FEEL: contract, closed forms of the scheduling probabilities, exact and sampled unbiasedness, liars."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from fedcohort.core.stats import spearman
from fedcohort.errors import BadParameter
from fedcohort.selectors.feel import Feel, des_raj, schedule
from fedcohort.testing import SelectorContract
from fedcohort.types import Outcome, Probed, Round, RoundResult, Signals

NEEDS = frozenset({"samples", "probe_grad_norm"})


class TestFeelSample(SelectorContract):
    runs = 40

    def make(self):
        return Feel(probe="sample:4", unbiased=True)


class TestFeelByReport(SelectorContract):
    runs = 40

    def make(self):
        return Feel(probe="none", resolve=0)


def ask(size, norms, samples=None, index=0):
    n = len(norms)
    profiles = Signals({"samples": np.ones(n) if samples is None else np.asarray(samples)}, NEEDS)
    answers = Probed(np.arange(n), Signals({"probe_grad_norm": np.asarray(norms, float)}, NEEDS))
    return Round(index, size, np.arange(n), n, profiles=profiles, probed=answers)


def timed(selector, seconds):
    n = len(seconds)
    selector.observe(
        RoundResult(0, np.arange(n), np.full(n, Outcome.OK, np.int8), np.asarray(seconds, float), Signals())
    )
    return selector


def test_importance_alone_is_proportional():
    a = np.array([1.0, 2.0, 3.0, 4.0])
    np.testing.assert_allclose(schedule(a, np.array([9.0, 1.0, 5.0, 2.0]), 1.0), a / 10, rtol=1e-9)


def test_equal_times_are_proportional_whatever_rho():
    a = np.array([1.0, 2.0, 3.0, 4.0])
    for rho in (0.01, 0.5, 0.99):
        np.testing.assert_allclose(schedule(a, np.full(4, 3.0), rho), a / 10, rtol=1e-9)


def test_time_alone_is_the_fastest():
    p = schedule(np.ones(4), np.array([3.0, 1.0, 2.0, 4.0]), 1e-9)
    assert p[1] > 0.99


def test_two_clients_by_hand():
    """a = (1/2, 1/2), T = (1, 3), rho = 1/2. T over its mean is (1/2, 3/2), halved (1/4, 3/4); y = lambda + 1/4:

        p = (1/2) sqrt(1/2) (1 / sqrt(y), 1 / sqrt(y + 1/2))   and   1 / sqrt(y) + 1 / sqrt(y + 1/2) = 2 sqrt 2.

    y = 0.33305 solves it: 1.73279 + 1.09563 = 2.82843. So p_1 = 1.73279 / 2.82843 = 0.61264.
    """
    p = schedule(np.array([0.5, 0.5]), np.array([1.0, 3.0]), 0.5)
    assert p.sum() == pytest.approx(1.0, abs=1e-12)
    assert p[0] == pytest.approx(0.61264, abs=1e-4)


@pytest.mark.parametrize("rho", [0.05, 0.3, 0.5, 0.9])
def test_no_other_probabilities_are_better(rho):
    """The objective of eq. 2 at p, against 2000 perturbed distributions, in the units of eq. 3."""
    rng = np.random.default_rng(0)
    a, seconds = rng.uniform(0.1, 3, 8), rng.uniform(1, 9, 8)
    p = schedule(a, seconds, rho)
    x, y = a / a.sum(), seconds / seconds.mean()

    def objective(q):
        return rho * (x**2 / q).sum() + (1 - rho) * (q * y).sum()

    for _ in range(2000):
        q = p * np.exp(0.05 * rng.standard_normal(8))
        assert objective(q / q.sum()) >= objective(p) - 1e-9


def test_extremes_still_sum_to_one_and_have_a_floor():
    for a, seconds in (
        ([0.0, 0.0, 0.0], [1, 2, 3]),
        ([0.0, 1.0, 0.0], [1, 2, 3]),
        ([1e-12, 1.0, 1e9], [1e-9, 1.0, 1e9]),
        ([1.0], [0.0]),
        ([1.0, 1.0], [0.0, 0.0]),
    ):
        p = schedule(np.array(a), np.array(seconds, float), 0.5)
        assert p.sum() == pytest.approx(1.0, abs=1e-12)
        assert (p >= 0.9e-3 / p.size).all()


def test_des_raj_is_unbiased_by_enumeration():
    """All ordered draws of 3 of 5 clients, each with its probability: the mean of the estimate is the sum."""
    a = np.array([0.1, 0.5, 1.0, 2.0, 4.0])
    seconds = np.array([5.0, 1.0, 2.0, 4.0, 3.0])
    v = np.array([3.0, -1.0, 4.0, 1.0, -5.0])
    mean, mass = 0.0, 0.0
    for order in permutations(range(5), 3):
        left, q = list(range(5)), []
        for k in order:
            p = schedule(a[left], seconds[left], 0.5)
            q.append(p[left.index(k)])
            left.remove(k)
        chance = float(np.prod(q))
        mass += chance
        mean += chance * float(des_raj(np.array(q)) @ v[list(order)])
    assert mass == pytest.approx(1.0, abs=1e-9)
    assert mean == pytest.approx(v.sum(), abs=1e-9)


def test_des_raj_by_hand():
    """M = 2, q = (1/4, 1/2): w = ((4 + 1) / 2, (2 + 0) / 2)."""
    assert des_raj(np.array([0.25, 0.5])).tolist() == [2.5, 1.0]


@pytest.mark.parametrize("resolve", [0, 2_000])
def test_the_selectors_own_draws_are_unbiased(resolve):
    """Monte-Carlo over the selector itself, with the directive it hands out; both ways to renormalise."""
    norms, samples = [0.2, 0.5, 1.0, 2.0, 3.0, 1.0], [10, 20, 30, 10, 20, 10]
    v = np.array([3.0, -1.0, 4.0, 1.0, -5.0, 2.0])
    feel = timed(Feel(resolve=resolve), [5, 1, 2, 4, 3, 2])
    estimates = []
    for seed in range(3000):
        cohort = feel.select(ask(3, norms, samples, 1), np.random.default_rng(seed))
        estimates.append(float(cohort.directives["des_raj"] @ v[cohort.clients]))
    error = np.std(estimates) / np.sqrt(len(estimates))
    assert abs(np.mean(estimates) - v.sum()) < 4 * error
    assert error < 0.3


def test_inclusion_is_given_where_it_is_known():
    norms = [1.0, 2.0, 3.0]
    one = Feel(rho=1.0).select(ask(1, norms), np.random.default_rng(0))
    assert one.inclusion[0] == pytest.approx(norms[one.clients[0]] / 6, rel=1e-6)
    assert Feel().select(ask(3, norms), np.random.default_rng(0)).inclusion.tolist() == [1, 1, 1]
    assert Feel().select(ask(2, norms), np.random.default_rng(0)).inclusion is None
    handed = Feel(unbiased=True).select(ask(2, norms), np.random.default_rng(0))
    np.testing.assert_allclose(handed.inclusion, np.minimum(1 / handed.directives["des_raj"], 1))


def test_slow_clients_are_drawn_less():
    feel = timed(Feel(rho=0.2), [1.0] * 10 + [9.0] * 10)
    hits = np.zeros(20)
    for seed in range(400):
        hits[feel.select(ask(4, np.ones(20), index=1), np.random.default_rng(seed)).clients] += 1
    assert hits[:10].sum() > 1.5 * hits[10:].sum()


def test_stale_norms_stay_and_unknown_ones_are_average():
    feel = Feel(probe="sample:2", rho=1.0)
    answers = Probed(np.array([0, 1]), Signals({"probe_grad_norm": np.array([1.0, 3.0])}, NEEDS))
    empty = np.empty(0, np.int64)
    feel.observe(RoundResult(0, empty, empty.astype(np.int8), empty.astype(float), Signals(), probed=answers))
    rnd = Round(1, 3, np.arange(3), 3, profiles=Signals({"samples": np.ones(3)}, NEEDS))
    cohort = feel.select(rnd, np.random.default_rng(0))
    a = dict(zip(cohort.clients.tolist(), cohort.why["importance"].tolist(), strict=True))
    assert [a[i] * 3 for i in range(3)] == pytest.approx([1.0, 3.0, 2.0])


def test_probe_names_all_some_or_nobody():
    rnd = ask(3, np.ones(30))
    r = np.random.default_rng
    assert Feel().probe(rnd, r(0)).size == 30
    assert Feel(probe="sample:7").probe(rnd, r(0)).size == 7
    assert Feel(probe="none").probe(rnd, r(0)).size == 0
    assert Feel(probe="none").needs == {"samples", "grad_norm"}


def test_a_liar_does_not_disturb_the_honest():
    truth = np.linspace(1, 5, 60)

    def correlation(lie):
        counts = np.zeros(60)
        for seed in range(700):
            norms = np.r_[truth[0] * lie, truth[1:]]
            counts[Feel(rho=1.0).select(ask(6, norms), np.random.default_rng(seed)).clients] += 1
        return spearman(truth[1:], counts[1:]), counts[0]

    (honest, _), (lied, got) = correlation(1.0), correlation(1000.0)
    assert honest > 0.8
    assert abs(honest - lied) < 0.05
    assert got < 700  # ten medians, not a thousand


@pytest.mark.parametrize("bad", [{"rho": 0.0}, {"rho": 1.1}, {"probe": "most"}, {"probe": "sample:0"}, {"resolve": -1}])
def test_bad_parameters_are_named(bad):
    with pytest.raises(BadParameter, match=next(iter(bad))):
        Feel(**bad)
