"""TiFL: contract, tiers by hand, odds by hand, credits, and where the accuracies come from."""

from __future__ import annotations

import numpy as np
import pytest

from fedcohort.errors import BadParameter
from fedcohort.selectors.tifl import Tifl, change_odds
from fedcohort.testing import SelectorContract
from fedcohort.types import Outcome, Probed, Round, RoundResult, Signals


class TestTifl(SelectorContract):
    runs = 40

    def make(self):
        return Tifl(interval=3)


class TestTiflByReports(SelectorContract):
    runs = 40

    def make(self):
        return Tifl(interval=2, accuracy="reports", tiers=2)


def ask(index, size, seconds, available=None):
    n = len(seconds)
    here = np.arange(n) if available is None else np.asarray(available)
    return Round(index, size, here, n, profiles=Signals({"expected_seconds": np.asarray(seconds, np.float32)}))


def tell(index, clients, accuracy=None, seconds=None):
    clients = np.sort(np.asarray(clients, np.int64))
    probed = None
    if accuracy is not None:
        probed = Probed(np.arange(len(accuracy)), Signals({"probe_accuracy": np.asarray(accuracy, float)}))
    duration = np.ones(clients.size) if seconds is None else np.asarray(seconds, float)
    return RoundResult(index, clients, np.full(clients.size, Outcome.OK, np.int8), duration, Signals(), probed=probed)


def test_tiers_by_hand():
    """Ten clients in five tiers: two each, by rank of 10 20 30 ... 100 seconds in a shuffled order."""
    seconds = np.array([100, 10, 50, 60, 20, 90, 30, 80, 40, 70])
    assert Tifl()._tiers(ask(0, 2, seconds)).tolist() == [4, 0, 2, 2, 0, 4, 1, 3, 1, 3]


def test_a_cohort_is_of_one_tier():
    seconds = np.arange(1.0, 51.0)
    for seed in range(30):
        cohort = Tifl().select(ask(0, 6, seconds), np.random.default_rng(seed))
        assert np.unique(cohort.why["tier"]).size == 1
        assert np.ptp(seconds[cohort.clients]) < 10


def test_a_thin_tier_is_filled_up_from_its_neighbours():
    """Fifty clients, of the fastest tier (0 to 9) only two are here; six places."""
    tifl = Tifl()
    tifl.state.odds = np.array([1.0, 0, 0, 0, 0])
    here = np.r_[[2, 5], np.arange(10, 50)]
    cohort = tifl.select(ask(0, 6, np.arange(1.0, 51.0), here), np.random.default_rng(0))
    assert {2, 5} <= set(cohort.clients.tolist())
    assert cohort.why["tier"].max() == 1


def test_odds_by_hand():
    """Accuracies 0.9 0.5 0.7 0.6, all with credits: order 1 3 2 0, odds 3/6 2/6 1/6 0 in that order."""
    odds = change_odds(np.array([0.9, 0.5, 0.7, 0.6]), np.arange(4))
    np.testing.assert_allclose(odds, [0, 3 / 6, 1 / 6, 2 / 6])
    np.testing.assert_allclose(change_odds(np.array([0.5, 0.5, 0.5]), np.arange(3)), 1 / 3)
    np.testing.assert_allclose(change_odds(np.array([0.9, 0.5, 0.7]), np.array([0, 2])), [0, 0, 1])


def test_odds_change_only_when_the_running_tier_stalls():
    seconds = np.arange(1.0, 11.0)
    lagging = [0.9, 0.9, 0.8, 0.8, 0.7, 0.7, 0.6, 0.6, 0.5, 0.5]

    def run(later):
        tifl = Tifl(interval=5)
        for index, accuracy in ((0, lagging), (5, later)):
            cohort = tifl.select(ask(index, 2, seconds), np.random.default_rng(index))
            tifl.observe(tell(index, cohort.clients, accuracy, seconds[np.sort(cohort.clients)]))
        return tifl.state.odds

    np.testing.assert_allclose(run(np.add(lagging, 0.05)), 0.2)
    np.testing.assert_allclose(run(lagging), [0, 0.1, 0.2, 0.3, 0.4])


def test_credits_bound_how_often_a_tier_runs():
    """Twenty planned rounds, 1.5 shares of four: six rounds at most for each of five tiers, then all starts anew."""
    tifl = Tifl(credits=1.5, rounds=20, interval=1000)
    seconds = np.repeat(np.arange(1.0, 6.0), 10)
    drawn = []
    for index in range(30):
        cohort = tifl.select(ask(index, 3, seconds), np.random.default_rng(index))
        drawn.append(int(cohort.why["drawn_tier"][0]))
        tifl.observe(tell(index, cohort.clients, seconds=seconds[np.sort(cohort.clients)]))
    assert np.bincount(drawn, minlength=5).tolist() == [6] * 5
    assert tifl.state.spent.tolist() == [0.0] * 5


def test_measured_latencies_move_a_client_to_another_tier():
    tifl = Tifl(tiers=2)
    seconds = np.arange(1.0, 11.0)
    assert tifl._tiers(ask(0, 2, seconds))[0] == 0
    tifl.observe(tell(0, [0, 3, 4], seconds=[50.0, 4.0, 5.0]))
    assert tifl._tiers(ask(1, 2, seconds))[0] == 1


def test_profiles_of_another_unit_do_not_separate_the_measured_from_the_others():
    tifl, seconds = Tifl(tiers=2), np.arange(1.0, 11.0)
    tifl.observe(tell(0, [0, 4, 9], seconds=5 * seconds[[0, 4, 9]]))  # five epochs; a profile is of one
    assert tifl._tiers(ask(1, 2, seconds)).tolist() == [0] * 5 + [1] * 5


def test_probes_are_few_and_only_now_and_then():
    tifl = Tifl(interval=4, sample=3)
    sizes = [tifl.probe(ask(i, 5, np.arange(1.0, 51.0)), np.random.default_rng(0)).size for i in range(9)]
    assert sizes == [15, 0, 0, 0, 15, 0, 0, 0, 15]
    assert Tifl(accuracy="reports").probe(ask(0, 5, np.ones(9)), np.random.default_rng(0)).size == 0


def test_one_liar_does_not_move_its_tier():
    """Losses 1 1 1 1 in a tier and 1 1 1 1000: the mean counts the liar at five medians."""
    tifl = Tifl(accuracy="reports", tiers=1)
    loss = np.array([1.0, 1.0, 1.0, 1000.0])
    result = RoundResult(0, np.arange(4), np.zeros(4, np.int8), np.ones(4), Signals({"loss_before": loss}))
    mean, known = tifl._measure(result, np.zeros(4, np.int8))
    assert known.tolist() == [True]
    assert mean[0] == pytest.approx(-2.0)


@pytest.mark.parametrize(
    "bad",
    [{"tiers": 0}, {"interval": 0}, {"accuracy": "guess"}, {"sample": 0}, {"credits": 0.9}, {"rounds": 0}],
)
def test_bad_parameters_are_named(bad):
    with pytest.raises(BadParameter, match=next(iter(bad))):
        Tifl(**bad)
