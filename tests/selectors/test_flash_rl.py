"""FLASH-RL: contract in its other shapes (the default is in tests/testing), rewards, and what went wrong before."""

from __future__ import annotations

import numpy as np
import pytest

from fedcohort.core import stats
from fedcohort.core.rng import generator
from fedcohort.errors import BadParameter
from fedcohort.selectors.flash_rl import FlashRL, divergence, places
from fedcohort.testing import SelectorContract
from fedcohort.testing.synthetic_federation import SyntheticFederation
from fedcohort.types import Outcome, Round, RoundResult, Signals


class TestSharedContract(SelectorContract):
    runs = 30

    def make(self):
        return FlashRL(network="shared", warmup="none", device=True)


class TestBareContract(SelectorContract):
    runs = 30

    def make(self):
        return FlashRL(warmup="none", profiles=False, hidden=16, steps=2)


def told(clients, weights, score, seconds=None, outcome=None, index=0, model=None):
    n = len(clients)
    return RoundResult(
        index,
        np.asarray(clients),
        np.zeros(n, np.int8) if outcome is None else np.asarray(outcome, np.int8),
        np.ones(n) if seconds is None else np.asarray(seconds, float),
        Signals({"weights": np.asarray(weights, np.float32)}),
        score,
        None,
        np.asarray(model if model is not None else [1.0, 1.0], np.float32),
    )


def test_worked_example():
    """Six clients, model w = (1, 1), weights w_k = (1 + a_k, 1 - a_k): d_k = 2 a_k / 2 = a_k.

    Durations 1..5 s between fastest=1 and slowest=5, so l~ = 0, .25, .5, .75, 1; client 5 fails after 5 s.
    Round 0 (the first score counts as a rise), lambda = .6, Psi_0 = .01, a = (0, ln 2, ln 2, ln 4, 0):
        zeta = (1, .5, .5, .25, 1, -> 0 for the failed),   zeta - l~ = (1, .25, 0, -.5, 0, -1)
        Psi  = .6 (zeta - l~) + .004 = (.604, .154, .004, -.296, .004, -.596)
    Round 1, the score falls, clients 0 and 1 again: zeta = 1 - exp(-d) = (0, .5), l~ = (0, .25):
        Psi_0 = .6 * 0 + .4 * .604 = .2416,   Psi_1 = .6 * .25 + .4 * .154 = .2116
    """
    selector = FlashRL(warmup="none", fastest=1.0, slowest=5.0)
    a = np.log([1, 2, 2, 4, 1, 1])
    weights = np.stack([1 + a, 1 - a], axis=1)
    weights[5] = np.nan
    selector.observe(told(range(6), weights, 0.5, [1, 2, 3, 4, 5, 5], [0, 0, 0, 0, 0, Outcome.FAILED]))
    want = [0.604, 0.154, 0.004, -0.296, 0.004, -0.596]
    np.testing.assert_allclose(selector.state.reputation, want, atol=1e-6)
    np.testing.assert_allclose(selector.state.act_reward, want, atol=1e-6)
    selector.observe(told([0, 1], weights[:2], 0.4, [1, 2], index=1))
    np.testing.assert_allclose(selector.state.act_reward[-2:], [0.2416, 0.2116], atol=1e-6)
    np.testing.assert_array_equal(selector.state.act_client[-2:], [0, 1])


def test_a_failure_can_be_passed_over():
    selector = FlashRL(warmup="none", failure="skip")
    selector.observe(told([0, 1], [[1, 2], [np.nan] * 2], 0.5, outcome=[0, Outcome.LATE]))
    np.testing.assert_array_equal(selector.state.act_client, [0])
    assert selector.state.reputation[1] == pytest.approx(0.01)


@pytest.mark.parametrize(("delta", "rise"), [(0.0, True), (0.05, False)])
def test_min_delta_is_the_rise_that_counts(delta, rise):
    selector = FlashRL(warmup="none", min_delta=delta, latency=0.0, mix=1.0)
    for index, score in enumerate((0.5, 0.52)):
        selector.observe(told([0], [[1.1, 1.1]], score, index=index))
    want = np.exp(-0.1) if rise else 1 - np.exp(-0.1)
    assert selector.state.act_reward[-1] == pytest.approx(want, abs=1e-5)


@pytest.mark.parametrize("form", ["relative", "eq5", "printed", "repo"])
def test_rewards_are_bounded_whatever_is_sent(form):
    rng = generator(0, "bounded")
    selector = FlashRL(divergence=form, warmup="none", hidden=4, steps=1)
    for index in range(40):
        scale = 10.0 ** rng.uniform(-6, 9, (4, 1))
        weights, model = rng.standard_normal((4, 5)) * scale, rng.standard_normal(5) * (rng.random(5) < 0.7)
        outcome = np.where(rng.random(4) < 0.2, Outcome.FAILED, Outcome.OK)
        seconds = rng.exponential(10.0 ** rng.uniform(-3, 6), 4)
        selector.observe(told(rng.choice(9, 4, replace=False), weights, rng.random(), seconds, outcome, index, model))
    reward = selector.state.act_reward
    assert reward.size > 100
    assert np.abs(reward).max() <= 1.0
    assert reward.std() > 0.05


def test_divergence_of_a_ten_per_cent_change():
    """A1: near-Gaussian weights, each moved by 10 % of the typical size. The default says 0.10 with little spread among
    like clients; as printed it is far above; the published code's |mean of signed ratios| spreads over an order."""
    rng = generator(0, "divergence")
    w = rng.standard_normal(20_000)
    like = w + 0.1 * rng.standard_normal((10, w.size))
    default, printed, code = (divergence(like, w, form) for form in ("relative", "eq5", "repo"))
    assert default.mean() == pytest.approx(0.1, abs=0.002)
    assert default.std() / default.mean() < 0.01
    assert printed.mean() > 0.2
    assert code.max() / code.min() > 3


def test_divergences_by_hand():
    """w = (2, -1, 0), w_1 = (3, 1, 0.5): gaps 1, 2, 0.5. Relative 3.5 / 3; eq5 with floor 0.1: (1/2 + 2/1 + .5/.1) / 3;
    printed, zeros left out: (1/2 + 2) / 2; repo, zeros left out: |(1/2 - 2) / 2|."""
    w, own = np.array([2.0, -1.0, 0.0]), np.array([[3.0, 1.0, 0.5]])
    assert divergence(own, w, "relative")[0] == pytest.approx(3.5 / 3)
    assert divergence(own, w, "eq5")[0] == pytest.approx(7.5 / 3)
    assert divergence(own, w, "printed")[0] == pytest.approx(1.25)
    assert divergence(own, w, "repo")[0] == pytest.approx(0.75)


def test_latency_is_scaled_by_percentiles_of_the_clients():
    """A2: durations of 100 s do not swamp the utility, and one straggler of a day does not flatten the others."""
    selector = FlashRL(warmup="none", hidden=4)
    seconds = np.append(np.linspace(100, 200, 39), 86_400)
    selector.observe(told(range(40), np.ones((40, 2)), 0.5, seconds))
    late = selector._late()
    assert late.min() == 0
    assert late.max() == 1
    assert late[30] - late[10] > 0.4


def test_places_without_exploration_are_the_best_and_with_it_random():
    rng, q = generator(0, "places"), np.arange(20.0)
    picked, explored = places(q, 5, 0.0, rng)
    np.testing.assert_array_equal(picked, [19, 18, 17, 16, 15])
    assert not explored.any()
    hits = np.zeros(20)
    for _ in range(2000):
        picked, explored = places(q, 5, 1.0, rng)
        assert explored.all()
        assert np.unique(picked).size == 5
        hits[picked] += 1
    assert np.abs(hits - 500).max() < 5 * np.sqrt(500)


def test_a_random_place_is_uniform_over_those_left():
    """eps = 1/2, two places of three clients, Q = (2, 1, 0). P(client 0 chosen): first place 1/2 + 1/2 * 1/3 = 2/3; if
    not, second place: 1/2 * 1 + 1/2 * 1/2 = 3/4. So 2/3 + 1/3 * 3/4 = 11/12. P(client 2): first 1/6; then, first was 0
    (2/3) or 1 (1/6): only at random, 1/2 * 1/2 = 1/4. So 1/6 + 5/6 * 1/4 = 3/8."""
    rng, hits = generator(1, "places"), np.zeros(3)
    for _ in range(6000):
        hits[places(np.array([2.0, 1.0, 0.0]), 2, 0.5, rng)[0]] += 1
    np.testing.assert_allclose(hits / 6000, [11 / 12, 2 - 11 / 12 - 3 / 8, 3 / 8], atol=0.025)


def test_exploration_falls_on_a_line():
    paper = FlashRL(preset="paper")
    assert paper.epsilon(0) == 0.9
    assert paper.epsilon(500) == pytest.approx(0.2)
    assert paper.epsilon(10_000) == 0.2
    assert paper.epsilon(1) == pytest.approx(0.9 - 0.0014)


def test_every_selected_client_is_remembered_and_learned_from():
    """A4: ten are selected, ten outputs have taken a step (the published code stopped at one of five)."""
    fed, selector = SyntheticFederation(20, failure=0.0), FlashRL(hidden=8, steps=1)
    (_, cohort), *_ = fed.play(selector, 1, 10)
    np.testing.assert_array_equal(np.flatnonzero(selector.state.turns), np.sort(cohort.clients))


def test_the_warm_up_is_asked_for_once_and_samples_are_not_batches():
    fed, selector = SyntheticFederation(20), FlashRL()
    rnd = fed.round(0, 5, selector.needs)
    assert selector.probe(rnd, generator(0, "x")).size == 20
    fed.play(selector, 2, 5)
    assert selector.probe(fed.round(2, 5, selector.needs), generator(0, "x")).size == 0
    np.testing.assert_allclose(np.expm1(selector.state.profile[:, 0]), rnd.profiles["samples"], rtol=1e-5)


def test_needs_follow_the_options():
    assert FlashRL().needs == {"weights", "model", "samples", "probe_weights"}
    assert FlashRL(warmup="none", profiles=False).needs == {"weights", "model"}
    assert {"cores", "frequency", "bandwidth"} <= FlashRL(device=True).needs


@pytest.mark.parametrize(
    "options", [{"preset": "none"}, {"mix": 1.5}, {"divergence": "l2"}, {"fastest": 2.0, "slowest": 1.0}]
)
def test_bad_options_are_refused(options):
    with pytest.raises(BadParameter):
        FlashRL(**options)


@pytest.mark.parametrize("network", ["joint", "shared"])
def test_cohorts_get_better_on_a_stationary_problem(network):
    """Forty clients; share of good ones in the last 20 of 90 rounds, against one half at random."""
    fed = SyntheticFederation(40, seed=5)
    steps = fed.play(FlashRL(network=network, steps=2), 90, 8, 5)
    late = np.concatenate([cohort.clients for _, cohort in steps[-20:]])
    assert fed.good[late].mean() > 0.8


def test_a_liar_moves_nobody_else():
    """One client sends its weights times 1000: who of the honest is chosen how often hardly changes."""

    class Lying(SyntheticFederation):
        def _measured(self, names, index, clients):
            columns = super()._measured(names, index, clients)
            for name in {"weights", "probe_weights"} & set(columns):
                columns[name][self.identity[clients] == 1] *= self.factor
            return columns

    found = []
    for factor in (1.0, 1000.0):
        counts = np.zeros(24)
        for seed in range(2):
            fed = Lying(24, seed=seed, failure=0.0)
            fed.factor = factor
            for _, cohort in fed.play(FlashRL(steps=2, hidden=16), 70, 6, seed):
                counts[cohort.clients] += 1
        honest = np.arange(24) != 1
        found.append(stats.spearman(fed.good[honest].astype(float), counts[honest]))
    assert found[0] > 0.6
    assert abs(found[1] - found[0]) < 0.05


def test_a_hundred_thousand_clients_with_the_shared_network():
    n, selector = 100_000, FlashRL(network="shared", warmup="none", profiles=False, steps=1)
    rng, everybody = generator(0, "many"), np.arange(n)
    for index in range(3):
        rnd = Round(index, 50, everybody, n)
        chosen = np.sort(selector.select(rnd, rng).clients)
        assert np.unique(chosen).size == 50
        weights = rng.standard_normal((50, 6))
        selector.observe(told(chosen, weights, 0.1 * index, rng.random(50), index=index, model=np.ones(6)))
