"""FedACS: the contract for both draws, a round by hand, duels against a naive loop, synthetic skewness, liars."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcohort.core.stats import spearman
from fedcohort.errors import BadParameter
from fedcohort.selectors.fedacs import FedACS, sequential_draw, single_draw, skewness
from fedcohort.testing import SelectorContract
from fedcohort.types import Outcome, Round, RoundResult, Signals

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import fedacs_planted


class TestFedACSFast(SelectorContract):
    runs = 40

    def make(self):
        return FedACS(fast=True, forget=0.98)


class TestFedACSByUpdate(SelectorContract):
    """Compares the updates that the server has anyway."""

    runs = 40

    def make(self):
        return FedACS(insight="update")


class TestFedACSByNetwork(SelectorContract):
    """Compares all layers after the extra step."""

    runs = 40

    def make(self):
        return FedACS(insight="network")


@pytest.mark.parametrize(("insight", "signal"), [("network", "network_insight"), ("update", "delta")])
def test_the_whole_network_is_compared_like_the_last_layer(insight, signal):
    """The same vectors under another name teach the same, and only one of them is asked for."""
    step, whole = FedACS(), FedACS(insight=insight)
    assert (step.needs, whole.needs) == (frozenset({"samples", "insight"}), frozenset({"samples", signal}))
    vectors = np.array(line([0.0, 1.0, 5.0]), np.float32)
    step.observe(told(0, [0, 1, 2], vectors))
    result = told(0, [0, 1, 2], vectors)
    whole.observe(RoundResult(0, result.clients, result.outcome, result.duration, Signals({signal: vectors})))
    assert np.array_equal(step.state.wins, whole.state.wins)
    assert step.state.wins.any()


class TestFedACSStopped(SelectorContract):
    """Stops in the middle of the kit's runs."""

    rounds = 6
    runs = 40

    def make(self):
        return FedACS(stop=40)


def ask(size, n, index=0, samples=None, available=None):
    profiles = Signals({"samples": np.full(n, 10) if samples is None else np.asarray(samples)})
    return Round(index, size, np.arange(n) if available is None else np.asarray(available), n, profiles=profiles)


def told(index, clients, insight, outcome=None):
    clients = np.asarray(clients, np.int64)
    outcome = np.full(clients.size, Outcome.OK, np.int8) if outcome is None else np.asarray(outcome, np.int8)
    signals = Signals({"insight": np.asarray(insight, np.float32)})
    return RoundResult(index, clients, outcome, np.ones(clients.size), signals)


def line(values):
    """Insights on a line: client i sends (value_i, 0)."""
    return [[v, 0.0] for v in values]


def test_six_clients_by_hand():
    """Two rounds of three of six clients, with insights on a line and unequal sample counts.

    Round 0, clients 0 1 2 with M = 1 4 1 and dw = 0 3 6: mean = (0 + 12 + 6) / 6 = 3, Q = 1*3, 2*0, 1*3 = 3 0 3.
        Rewards -3 0 -3: client 1 beats both; 0 and 2 tie with each other and lose to 1.
        A = 0, .4, 0; B = .2, 0, .2.
    Round 1, clients 2 3 4 with M = 1 1 2 and dw = 5 1 1: mean = (5 + 1 + 2) / 4 = 2, Q = 3, 1, sqrt 2 * 1 = 1.414.
        Rivals from round 0: client 0 (-3) and client 1 (0); the old reward of 2 is replaced by its new one, -3.
        2 (-3): loses to 3, 4 and 1, ties with 0          B_2 = .2 + 3 * .2 = .8
        3 (-1): beats 2, 4, 0, loses to 1                 A_3 = .6, B_3 = .2
        4 (-1.414): beats 2, 0, loses to 3, 1             A_4 = .4, B_4 = .4
        Clients 0 and 1 are not of this round: nothing changes for them.
    """
    fed = FedACS(rate=0.2)
    fed.select(ask(3, 6, samples=[1, 4, 1, 1, 2, 7]), np.random.default_rng(0))
    fed.observe(told(0, [0, 1, 2], line([0, 3, 6])))
    np.testing.assert_allclose(fed.state.wins, [0, 0.4, 0, 0, 0, 0], rtol=1e-6)
    np.testing.assert_allclose(fed.state.losses, [0.2, 0, 0.2, 0, 0, 0], rtol=1e-6)
    fed.observe(told(1, [2, 3, 4], line([5, 1, 1])))
    np.testing.assert_allclose(fed.state.wins, [0, 0.4, 0, 0.6, 0.4, 0], rtol=1e-6)
    np.testing.assert_allclose(fed.state.losses, [0.2, 0, 0.8, 0.2, 0.4, 0], rtol=1e-6)
    np.testing.assert_allclose(fed.state.reward[:5], [-3, 0, -3, -1, -math.sqrt(2)], rtol=1e-6)


def test_skewness_is_the_joint_norm():
    """Weight and bias together: sqrt(3^2 + 4^2), not 3 + 4 as the published code adds them up."""
    np.testing.assert_allclose(skewness(np.array([[3.0, 4.0], [-3.0, -4.0]]), np.ones(2)), [5, 5])


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.integers(0, 4), st.booleans())
def test_duels_equal_the_loop_of_algorithm_3(seed, history, ties):
    """A naive version: dictionaries, a deque of rounds, pair by pair."""
    rng = np.random.default_rng(seed)
    n, fed = 9, FedACS(rate=0.5, history=history)
    samples = rng.integers(1, 5, n)
    fed.select(ask(3, n, samples=samples), rng)
    wins, losses, past = np.zeros(n), np.zeros(n), []
    for index in range(8):
        who = np.sort(rng.choice(n, 4, replace=False))
        dw = rng.integers(0, 3, (4, 2)) if ties else rng.normal(size=(4, 2))
        mean = sum(samples[c] * d for c, d in zip(who, dw, strict=True)) / samples[who].sum()
        now = {int(c): np.float32(-math.sqrt(samples[c]) * math.dist(d, mean)) for c, d in zip(who, dw, strict=True)}
        rivals = {}
        for rewards in [*past[-history:], now] if history else [now]:
            rivals.update(rewards)
        for i in now:
            for j in rivals:
                if i != j and abs(now[i] - rivals[j]) > 1e-5:
                    (wins if now[i] > rivals[j] else losses)[i] += 0.5
        past.append(now)
        before = fed.state.wins + fed.state.losses
        fed.observe(told(index, who, dw))
        duels = (fed.state.wins + fed.state.losses - before)[who]
        assert (duels <= 0.5 * (len(rivals) - 1) + 1e-6).all()
    if not ties:  # with integers, equal numbers may differ by rounding in one of the two versions
        np.testing.assert_allclose(fed.state.wins, wins, atol=1e-5)
        np.testing.assert_allclose(fed.state.losses, losses, atol=1e-5)


def test_history_is_the_latest_reward_and_ends_after_h_rounds():
    fed = FedACS(rate=1.0, history=2)
    fed.select(ask(2, 6), np.random.default_rng(0))
    fed.observe(told(0, [0, 1], line([0, 10])))  # rewards -5 sqrt 10
    fed.observe(told(1, [0, 1], line([0, 1])))  # rewards -0.5 sqrt 10: the latest
    fed.observe(told(2, [2, 3], line([0, 4])))  # -2 sqrt 10: loses to 0 and 1 as they are now, ties with each other
    assert fed.state.losses[[2, 3]].tolist() == [2.0, 2.0]
    assert fed.state.wins[[2, 3]].tolist() == [0.0, 0.0]
    fed.observe(told(4, [4, 5], line([0, 2])))  # round 1 is out of reach (H = 2), round 2 is not
    assert fed.state.wins[[4, 5]].tolist() == [2.0, 2.0]
    assert fed.state.losses[[4, 5]].tolist() == [0.0, 0.0]


def test_ties_change_nothing():
    fed = FedACS()
    fed.select(ask(5, 5), np.random.default_rng(0))
    for index in range(3):
        fed.observe(told(index, range(5), np.full((5, 7), 0.3)))
    assert not fed.state.wins.any()
    assert not fed.state.losses.any()


def test_a_lonely_insight_teaches_nothing():
    """It is its own mean: Q = 0 would make it the best client there ever was."""
    fed = FedACS()
    fed.select(ask(2, 4), np.random.default_rng(0))
    fed.observe(told(0, [0, 1], [[5.0], [np.nan]], [Outcome.OK, Outcome.FAILED]))
    assert (fed.state.told == -1).all()
    fed.observe(told(1, [2, 3], [[1.0], [2.0]]))
    assert not fed.state.losses.any()


def test_identical_clients_win_half_of_their_duels():
    """Insights of one distribution, random cohorts: the mean win rate is one half.

    (With its own cohorts it is a little more: those who just won are asked again and no longer rivals of the past.)
    """
    rng = np.random.default_rng(3)
    fed = FedACS(history=5)
    for index in range(300):
        cohort = np.sort(rng.choice(40, 10, replace=False))
        fed.observe(told(index, cohort, rng.normal(size=(10, 6))))
    rate = fed.state.wins.sum() / (fed.state.wins + fed.state.losses).sum()
    assert abs(rate - 0.5) < 0.02


def test_frozen_after_the_stop_and_no_insight_is_asked_for():
    fed = FedACS(stop=2)
    for index in range(2):
        assert "insight" in fed.needs
        fed.select(ask(2, 4, index), np.random.default_rng(0))
        fed.observe(told(index, [0, 1, 2], line([0, 1, 5])))
    assert fed.needs == {"samples"}
    frozen = fed.state_dict()
    late = RoundResult(2, np.arange(2), np.zeros(2, np.int8), np.ones(2), Signals({}, fed.needs))
    fed.observe(late)
    for name in ("wins", "losses", "reward", "told"):
        assert np.array_equal(fed.state_dict()[name], frozen[name])
    cohorts = {tuple(np.sort(fed.select(ask(2, 4, 3), np.random.default_rng(s)).clients)) for s in range(40)}
    assert len(cohorts) > 2  # still draws from the posteriors, not the argmax


def test_pool_sizes():
    """lambda of the available, at least the cohort."""
    fed = FedACS(tolerance=0.4)
    rng = np.random.default_rng(0)
    assert fed.pool(ask(5, 50), rng).size == 20
    assert fed.pool(ask(30, 50), rng).size == 30
    assert fed.pool(ask(2, 50, available=np.arange(0, 50, 5)), rng).size == 4
    for fast in (False, True):
        pool = FedACS(fast=fast).pool(ask(5, 50), rng)
        assert np.unique(pool).size == 20


def pick_probabilities(a, b, grid=4000):
    """P(client i has the largest theta) by numeric integration: int f_i prod_{j != i} F_j."""
    from scipy.stats import beta

    x = (np.arange(grid) + 0.5) / grid
    f = np.array([beta.pdf(x, i + 1, j + 1) for i, j in zip(a, b, strict=True)])
    cdf = np.array([beta.cdf(x, i + 1, j + 1) for i, j in zip(a, b, strict=True)])
    return np.array([(f[i] * np.delete(cdf, i, 0).prod(0)).mean() for i in range(len(a))])


A, B = np.array([0, 2, 0, 5, 1], np.float32), np.array([0, 1, 3, 2, 1], np.float32)


def test_the_sequential_draw_has_the_law_of_algorithm_2():
    """First pick by integration; second pick given the first by integration over those left."""
    rng, runs = np.random.default_rng(0), 4_000
    first, pairs = np.zeros(5), np.zeros((5, 5))
    for _ in range(runs):
        i, j = sequential_draw(A, B, 2, rng)
        first[i] += 1
        pairs[i, j] += 1
    want = pick_probabilities(A, B)
    assert np.abs(first / runs - want).max() < 4 * 0.5 / math.sqrt(runs)
    left = np.delete(np.arange(5), 3)
    given_3 = pairs[3, left] / pairs[3].sum()
    assert np.abs(given_3 - pick_probabilities(A[left], B[left])).max() < 4 * 0.5 / math.sqrt(pairs[3].sum())


def test_the_single_draw_is_the_top_of_one_draw_each():
    """Inclusion frequencies of the pool against a plain version with NumPy's own Beta generator."""
    rng, runs = np.random.default_rng(1), 4_000
    got, want = np.zeros(5), np.zeros(5)
    theta = rng.beta(A + 1.0, B + 1.0, (runs, 5))
    for row in range(runs):
        got[single_draw(A, B, 2, rng)] += 1
        want[np.argsort(theta[row])[-2:]] += 1
    assert np.abs(got - want).max() / runs < 4 * math.sqrt(0.5 / runs)


def test_certain_members_do_not_draw_and_nothing_else_changes():
    """Sharp and vague posteriors: the shortcut gives the inclusion rates of the plain version."""
    rng, n, size, runs = np.random.default_rng(2), 300, 100, 400
    total = rng.choice([0.0, 4.0, 40.0, 4e4], n)
    a = (total * rng.random(n)).astype(np.float32)
    b = (total - a).astype(np.float32)
    got, want = np.zeros(n), np.zeros(n)
    for _ in range(runs):
        pool = single_draw(a, b, size, rng)
        assert np.unique(pool).size == size
        got[pool] += 1
        want[np.argsort(rng.beta(a + 1.0, b + 1.0))[-size:]] += 1
    gap = (got - want) / np.sqrt(got * (1 - got / runs) + want * (1 - want / runs) + 1.0)
    assert np.abs(gap).max() < 4.5
    assert abs((gap**2).mean() - 1) < 0.5 or (gap**2).mean() < 1


def test_default_draw_changes_with_the_number_of_clients(monkeypatch):
    from fedcohort.selectors import fedacs

    calls = []
    monkeypatch.setattr(fedacs, "sequential_draw", lambda a, b, k, r: calls.append("exact") or np.arange(k))
    monkeypatch.setattr(fedacs, "single_draw", lambda a, b, k, r: calls.append("fast") or np.arange(k))
    for n, fast in ((500, None), (501, None), (501, False), (500, True)):
        FedACS(fast=fast).select(ask(5, n), np.random.default_rng(0))
    assert calls == ["exact", "fast", "exact", "fast"]


@pytest.mark.parametrize("fast", [False, True])
def test_synthetic_skewness_is_found(fast):
    """The figure of the page, with two seeds: pool and true best 40 % overlap by 0.75 at least after 200 rounds."""
    overlaps = [fedacs_planted.overlap(FedACS(fast=fast), rounds=200, seed=seed)[200] for seed in range(2)]
    assert min(overlaps) >= 0.75


def test_forgetting_fades_all_duels():
    fed = FedACS(rate=1.0, forget=0.5, history=0)
    fed.select(ask(2, 4), np.random.default_rng(0))
    fed.observe(told(0, [0, 1, 2], line([0, 1, 5])))
    before = fed.state.wins.copy()
    fed.observe(told(1, [2, 3], line([1, 1])))
    assert np.allclose(fed.state.wins, before / 2)
    assert before.any()


def test_drift_is_followed_only_with_forgetting():
    """Skewed and unskewed change places after 150 rounds."""

    def late_share(forget):
        rng = np.random.default_rng(0)
        fed = FedACS(forget=forget)
        skew = np.where(np.arange(40) < 20, 0.2, 1.0)
        hits = []
        for index in range(260):
            if index == 150:
                skew = skew[::-1]
            cohort = np.sort(fed.select(ask(8, 40, index), rng).clients)
            fed.observe(told(index, cohort, skew[cohort, None] * rng.normal(size=(8, 12))))
            hits.append((skew[cohort] < 0.5).mean())
        return np.mean(hits[-60:])

    assert late_share(0.95) > late_share(1.0) + 0.1


def test_a_liar_does_not_blur_the_honest():
    """One client sends a thousandfold insight. Honest clients are ranked as before, and the liar stays out."""

    def correlation(lie, clip=10.0):
        scores, liar = [], []
        for seed in range(4):
            rng = np.random.default_rng(seed)
            fed, truth = FedACS(clip=clip), np.linspace(0.2, 1.2, 60)
            counts = np.zeros(60)
            for index in range(120):
                cohort = np.sort(fed.select(ask(10, 60, index), rng).clients)
                dw = truth[cohort, None] * rng.normal(size=(cohort.size, 16)) / 4
                dw[cohort == 0] *= lie
                fed.observe(told(index, cohort, dw))
                counts[cohort] += 1
            scores.append(-spearman(truth[1:], counts[1:]))
            liar.append(counts[0])
        return np.mean(scores), np.mean(liar)

    honest, often = correlation(1.0)
    lied, seldom = correlation(1000.0)
    assert honest > 0.8
    assert abs(honest - lied) < 0.05
    assert seldom < often / 2


def test_unknown_samples_count_as_the_mean():
    fed = FedACS()
    fed.observe(told(0, [0, 1, 2], line([0, 3, 6])))  # no profile at all: equal weights
    assert fed.state.wins.tolist() == pytest.approx([0, 0.4, 0])
    fed = FedACS()
    fed.select(ask(3, 3, samples=[9.0, np.nan, 9.0]), np.random.default_rng(0))
    fed.observe(told(0, [0, 1, 2], line([0, 3, 6])))
    assert fed.state.reward.tolist() == pytest.approx([-9, 0, -9])


def test_why_names_wins_and_losses():
    fed = FedACS(tolerance=1.0)
    fed.select(ask(3, 3), np.random.default_rng(0))
    fed.observe(told(0, [0, 1, 2], line([0, 3, 9])))
    cohort = fed.select(ask(3, 3, 1), np.random.default_rng(0))
    assert set(cohort.why) == {"wins", "losses", "expected"}
    np.testing.assert_allclose(cohort.why["wins"], fed.state.wins[cohort.clients])


@pytest.mark.parametrize(
    "bad", [{"tolerance": 0.0}, {"rate": 0.0}, {"history": -1}, {"stop": -1}, {"forget": 0.0}, {"clip": 0.5}]
)
def test_bad_parameters_are_named(bad):
    with pytest.raises(BadParameter, match=next(iter(bad))):
        FedACS(**bad)
