"""The sampling designs that the first selectors state, and the option that the catalogue test does not reach."""

import numpy as np

from fedcohort.selectors.proportional import Proportional
from fedcohort.selectors.round_robin import RoundRobin
from fedcohort.selectors.uniform import Uniform
from fedcohort.testing import SelectorContract, SyntheticFederation
from fedcohort.types import Cohort, Round, RoundResult, Signals


class TestProportionalWithReplacement(SelectorContract):
    exempt = {"exact_size": "a client drawn twice trains once"}  # noqa: RUF012

    def make(self):
        return Proportional(replacement=True)


def drawn(selector, samples, size, runs, available=None):
    """How often each client was chosen, and the sum of 1 / inclusion over its choices."""
    here = np.arange(len(samples)) if available is None else available
    hits, inverse = np.zeros(len(samples)), np.zeros(len(samples))
    for run in range(runs):
        rnd = Round(0, size, here, len(samples), profiles=Signals({"samples": np.array(samples)}))
        cohort = selector.select(rnd, np.random.default_rng(run))
        hits[cohort.clients] += 1
        inverse[cohort.clients] += 1 / cohort.inclusion
    return hits, inverse


def test_uniform_states_its_inclusion():
    """K / |A| = 2 / 4, and the Horvitz-Thompson count of each available client is 1."""
    hits, inverse = drawn(Uniform(), [1] * 6, 2, 4000, np.array([0, 2, 3, 5]))
    assert hits[[1, 4]].sum() == 0
    assert np.abs(hits[[0, 2, 3, 5]] / 4000 - 0.5).max() < 4.5 * 0.5 / np.sqrt(4000)
    np.testing.assert_allclose(inverse[[0, 2, 3, 5]] / 4000, 1.0, atol=0.1)


def test_proportional_includes_by_samples_and_caps():
    """K = 2, n = (60, 10, 20, 10): the first would have 1.2, is capped at 1; the rest share 1 as 1 : 2 : 1."""
    hits, inverse = drawn(Proportional(), [60, 10, 20, 10], 2, 4000)
    np.testing.assert_allclose(hits / 4000, [1, 0.25, 0.5, 0.25], atol=0.035)
    np.testing.assert_allclose(inverse / 4000, 1.0, atol=0.12)


def test_with_replacement_trains_once_and_counts_twice():
    """Multiplicities sum to K; client i is in with probability 1 - (1 - p_i)^K."""
    samples, k = np.array([60, 10, 20, 10]), 3
    rnd = Round(0, k, np.arange(4), 4, profiles=Signals({"samples": samples}))
    total = np.zeros(4)
    for run in range(3000):
        cohort = Proportional(replacement=True).select(rnd, np.random.default_rng(run))
        assert cohort.directives["multiplicity"].sum() == k
        total[cohort.clients] += cohort.directives["multiplicity"]
        p = samples[cohort.clients] / 100
        np.testing.assert_allclose(cohort.inclusion, 1 - (1 - p) ** k)
    np.testing.assert_allclose(total / 3000 / k, samples / 100, atol=0.025)


def test_clients_without_samples_come_last():
    hits, _ = drawn(Proportional(), [0, 5, 0, 5], 2, 50)
    assert hits.tolist() == [0, 50, 0, 50]
    hits, _ = drawn(Proportional(), [0, 5, 0, 5], 3, 400)
    assert hits[[1, 3]].tolist() == [400, 400]
    assert hits[0] + hits[2] == 400
    assert 140 < hits[0] < 260


def test_round_robin_gives_equal_turns():
    """10 clients, 4 a round, most of them failing: turns never differ by more than one; after 5 rounds all had two."""
    federation, selector, asked = SyntheticFederation(10, failure=0.9), RoundRobin(), np.zeros(10, int)
    for index in range(15):
        asked[federation.play(selector, [index], 4)[0][1].clients] += 1
        assert np.ptp(asked) <= 1
    assert asked.tolist() == [6] * 10


def test_round_robin_lets_the_absent_catch_up_once():
    """Clients 0 and 1 are away for three rounds; back again they go first, once."""
    selector = RoundRobin()
    for index in range(6):
        here = np.arange(2 if 0 < index < 4 else 0, 6)
        cohort = selector.select(Round(index, 2, here, 6), np.random.default_rng(index))
        if index == 0:
            cohort = Cohort(np.array([0, 1]))
        selector.observe(RoundResult(index, cohort.clients, np.zeros(2, np.int8), np.ones(2)))
        if index == 4:
            assert sorted(cohort.clients) == [0, 1]
        if index == 5:
            assert not {0, 1} & set(cohort.clients.tolist())
