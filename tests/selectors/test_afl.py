"""AFL: values by hand, the three shares of its draw, liars."""

from __future__ import annotations

import numpy as np
import pytest

from fedcohort.core.stats import spearman
from fedcohort.errors import BadParameter
from fedcohort.selectors.afl import AFL
from fedcohort.testing import SelectorContract
from fedcohort.types import Outcome, Round, RoundResult, Signals


class TestAFLSteep(SelectorContract):
    def make(self):
        return AFL(set_aside=0.0, scale=1.0, uniform=0.0)


def ask(size, n, index=1, samples=None, available=None):
    profiles = Signals({"samples": np.ones(n) if samples is None else np.asarray(samples)})
    here = np.arange(n) if available is None else np.asarray(available)
    return Round(index, size, here, n, profiles=profiles)


def told(index, clients, loss, outcome=None):
    clients = np.asarray(clients, np.int64)
    outcome = np.full(clients.size, Outcome.OK, np.int8) if outcome is None else np.asarray(outcome, np.int8)
    return RoundResult(index, clients, outcome, np.ones(clients.size), Signals({"train_loss": np.asarray(loss, float)}))


def values(s, rnd):
    cohort = s.select(rnd, np.random.default_rng(0))
    return cohort.why["value"][np.argsort(cohort.clients)]


def test_values_by_hand():
    """v = sqrt(n) L: n = 1 4 9 16 25 36 and L = 6 2 2 1 - -: 6 4 6 4; client 4 failed: their mean 5; 5 is new: 6."""
    s = AFL(clip=1.0)
    s.observe(told(0, range(5), [6, 2, 2, 1, np.nan], [0, 0, 0, 0, Outcome.FAILED]))
    np.testing.assert_allclose(values(s, ask(6, 6, samples=[1, 4, 9, 16, 25, 36])), [6, 4, 6, 4, 5, 6])


def test_draw_by_value_follows_the_softmax():
    """Two clients, one place, nothing uniform: odds exp(scale v) with scale v = 0 and ln 4: 1 to 4."""
    s, n = AFL(set_aside=0.0, uniform=0.0, scale=1.0, clip=1.0), 3000
    s.observe(told(0, [0, 1], [0.0, np.log(4.0)]))
    share = np.mean([s.select(ask(1, 2), np.random.default_rng(i)).clients[0] for i in range(n)])
    assert abs(share - 0.8) < 4.5 * 0.4 / np.sqrt(n)


def test_the_least_valuable_three_quarters_are_drawn_uniformly_only():
    """40 clients, K = 10, shares 0.75 and 0.1: nine of the ten best, one of all the others."""
    s = AFL()
    s.observe(told(0, range(40), np.arange(1.0, 41.0)))
    for seed in range(50):
        cohort = s.select(ask(10, 40), np.random.default_rng(seed))
        by_value = cohort.why["by_value"]
        assert by_value.sum() == 9
        assert (cohort.clients[by_value] >= 30).all()


def test_lots_have_their_share_on_average_even_for_a_cohort_of_one():
    """uniform = 0.1, K = 1: a uniform draw in one round of ten."""
    s, n = AFL(), 3000
    s.observe(told(0, range(8), np.arange(1.0, 9.0)))
    uniform = np.mean([not s.select(ask(1, 8), np.random.default_rng(i)).why["by_value"][0] for i in range(n)])
    assert abs(uniform - 0.1) < 4.5 * 0.3 / np.sqrt(n)


def test_never_sets_aside_more_than_the_cohort_allows():
    s = AFL(set_aside=0.9, uniform=0.0)
    s.observe(told(0, range(10), np.arange(10.0)))
    assert set(s.select(ask(4, 10), np.random.default_rng(0)).clients) == {6, 7, 8, 9}


def test_new_clients_are_not_set_aside_untried():
    s = AFL(uniform=0.0)
    s.observe(told(0, range(15), np.arange(1.0, 16.0)))
    chosen = np.concatenate([s.select(ask(2, 20), np.random.default_rng(i)).clients for i in range(60)])
    assert set(range(15, 20)) <= set(chosen)


def test_slots_not_positions():
    s = AFL(uniform=0.0, clip=1.0)
    s.observe(told(0, range(20), np.arange(20.0)))
    assert s.select(ask(1, 20, available=[2, 5, 11]), np.random.default_rng(0)).clients.tolist() == [11]


def test_a_liar_does_not_flatten_the_honest():
    """One of 100 reports a thousandfold loss; exp(v) of the honest would vanish against it without the clip."""

    def correlation(lie):
        truth = np.linspace(1, 4, 100)
        s, counts = AFL(set_aside=0.0, scale=1.0), np.zeros(100)
        s.observe(told(0, range(100), np.r_[truth[0] * lie, truth[1:]]))
        for seed in range(800):
            counts[s.select(ask(10, 100), np.random.default_rng(seed)).clients] += 1
        return spearman(truth[1:], counts[1:]), counts[0]

    (honest, _), (lied, often) = correlation(1.0), correlation(1000.0)
    assert honest > 0.8
    assert abs(honest - lied) < 0.05
    assert often < 500  # the liar is drawn like the best, not always


def test_huge_losses_do_not_overflow():
    s = AFL(clip=1.0)
    s.observe(told(0, range(4), [1e38, 1.0, 1.0, 1.0]))
    assert s.select(ask(2, 4, samples=[1e6] * 4), np.random.default_rng(0)).clients.size == 2


@pytest.mark.parametrize("bad", [{"set_aside": 1.0}, {"scale": -1.0}, {"uniform": 1.1}, {"clip": 0.1}])
def test_bad_parameters_are_named(bad):
    with pytest.raises(BadParameter, match=next(iter(bad))):
        AFL(**bad)
